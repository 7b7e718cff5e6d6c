"""Requests for some seconds, and an account of each: python load.py SECONDS"""

import collections
import http.client
import sys
import threading
import time

PORT = 8000
answers: collections.Counter[str] = collections.Counter()


def call(path: str, until: float) -> None:
    """One request after the other."""
    while time.monotonic() < until:
        began = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=30)
        try:
            connection.request("GET", path)
            status = str(connection.getresponse().status)
        except OSError as error:
            status = repr(error)
        connection.close()
        early = path == "/slow" and time.monotonic() - began < 0.5
        answers[f"{path} {status}{' EARLY' if early else ''}"] += 1


if __name__ == "__main__":
    end = time.monotonic() + float(sys.argv[1])
    threads = [threading.Thread(target=call, args=(p, end)) for p in ["/hello"] + ["/slow"] * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = {"/hello 200", "/slow 504"}
    for what in sorted(expected & set(answers)):
        print(what, "as expected" if answers[what] else "")
    print("lost or wrong:", {k: n for k, n in answers.items() if k not in expected} or "none")
    sys.exit(set(answers) != expected)
