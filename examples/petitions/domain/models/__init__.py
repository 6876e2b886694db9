from examples.petitions.domain.models.petition import Notice, Petition, PetitionState, Referral, ReferralState
from examples.petitions.domain.models.scheduled_job import DeadLetterJob, JobStatus, ScheduledJob

__all__ = [
    "DeadLetterJob", "JobStatus", "Notice", "Petition", "PetitionState", "Referral", "ReferralState", "ScheduledJob",
]  # fmt: skip
