from examples.petitions.application.services.dead_letter_alert_service import DeadLetterAlertService, Death
from examples.petitions.application.services.deadlines import (
    Deadline,
    DeadlineHandler,
    DeliberationTimeout,
    EscalationCheck,
    ReferralTimeout,
    fire_once,
)
from examples.petitions.application.services.job_worker_service import JobHandler, JobWorkerService
from examples.petitions.application.services.petition_service import PetitionService, WrongState

__all__ = [
    "DeadLetterAlertService", "Deadline", "DeadlineHandler", "Death", "DeliberationTimeout", "EscalationCheck",
    "JobHandler", "JobWorkerService", "PetitionService", "ReferralTimeout", "WrongState", "fire_once",
]  # fmt: skip
