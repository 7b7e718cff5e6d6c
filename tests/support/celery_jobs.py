"""`celery -A celery_jobs worker` runs the jobs of `jobs_apps`."""

from jobs_apps import celery_app

app = celery_app()
