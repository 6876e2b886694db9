from examples.petitions.application.ports.halt_checker import HaltCheckerProtocol, HaltStatus
from examples.petitions.application.ports.job_scheduler import (
    InvalidRequestError,
    JobNotClaimedError,
    JobReleaseProtocol,
    JobSchedulerProtocol,
    SystemHaltedError,
    UnknownJobTypeError,
)
from examples.petitions.application.ports.outside import AlertPort, DeadLetterAlert, NotificationPort
from examples.petitions.application.ports.records import (
    DeadLetterPort,
    Execution,
    ExecutionAuditPort,
    ExecutionOutcome,
    Heartbeat,
    HeartbeatPort,
    QueueDepth,
)
from examples.petitions.application.ports.unit_of_work import BeginWork, EffectLog, PetitionRepository, Work

__all__ = [
    "AlertPort", "BeginWork", "DeadLetterAlert", "DeadLetterPort", "EffectLog", "Execution", "ExecutionAuditPort",
    "ExecutionOutcome", "HaltCheckerProtocol", "HaltStatus", "Heartbeat", "HeartbeatPort", "InvalidRequestError",
    "JobNotClaimedError", "JobReleaseProtocol", "JobSchedulerProtocol", "NotificationPort", "PetitionRepository",
    "QueueDepth", "SystemHaltedError", "UnknownJobTypeError", "Work",
]  # fmt: skip
