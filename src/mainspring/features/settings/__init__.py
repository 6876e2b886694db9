"""Settings that operators change at run time, for all processes: `app.settings`.

What a process knows of them is in live_settings.py, which the pipeline, tasks and limits use.

api      sets, reads and clears settings
change   checks a change, and puts it into the document of its task, queue or limit
feature  holds back the jobs of paused tasks
"""
