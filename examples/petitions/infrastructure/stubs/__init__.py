from examples.petitions.infrastructure.stubs.halt_checker_stub import HaltCheckerStub
from examples.petitions.infrastructure.stubs.job_scheduler_stub import JobSchedulerStub

__all__ = ["HaltCheckerStub", "JobSchedulerStub"]
