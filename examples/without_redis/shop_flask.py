"""The limits of shop.py in Flask: one import, and one string for Limiter.

cd examples/without_redis; gunicorn --workers 2 shop_flask:app
"""

import os

from flask import Flask, request
from flask_limiter import Limiter

import wheeld_client.integrations.limits  # noqa: F401 - registers wheeld://

app = Flask(__name__)
limiter = Limiter(
    lambda: request.view_args["customer"],
    app=app,
    storage_uri=f"wheeld://{os.environ.get('SHOP_DAEMON', 'default')}",
)


@app.post("/cart/<customer>")
@limiter.limit("20/minute")
def cart(customer: str) -> str:
    """A fixed window for each customer."""
    return customer
