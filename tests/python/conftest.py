# SPDX-License-Identifier: Apache-2.0
"""With CDDP_ONE_IN=K one test of K is run, drawn by CDDP_SEED, which is the day of the year if it is not set."""
import os
import time
import zlib

ONE_IN = int(os.environ.get("CDDP_ONE_IN", 1))
SEED = os.environ.get("CDDP_SEED") or time.strftime("%j")


def pytest_report_header(config):
    return f"one test of {ONE_IN}, drawn by CDDP_SEED={SEED}" if ONE_IN > 1 else None


def pytest_collection_modifyitems(config, items):
    drawn = [item for item in items if zlib.crc32(f"{SEED} {item.name}".encode()) % ONE_IN == 0]
    if drawn and ONE_IN > 1:
        config.hook.pytest_deselected(items=[item for item in items if item not in drawn])
        items[:] = drawn
