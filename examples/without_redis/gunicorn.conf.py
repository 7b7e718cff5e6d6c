"""Of shop.py: each worker process runs an event loop."""

workers = 2
worker_class = "uvicorn_worker.UvicornWorker"
