"""Object stores: create or nothing, with the credentials that were handed in, and words that hold no secret."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from endstate_action.errors import InputError
from endstate_action.state.keys import CheckpointKey, checkpoints_prefix
from endstate_action.state.stores.base import (
    Denied,
    Exists,
    RateLimited,
    Stored,
    StoreUnreadable,
    StoreUnusable,
    Unavailable,
)
from endstate_action.state.stores.objectstore import ObjectStore, Service
from tests.support.object_server import ACCESS_KEY, BUCKET, SECRET, SIGNATURE, ObjectServer
from tests.support.stores import LINEAGE

KEY = str(CheckpointKey(LINEAGE, 1, 1, 0))
OTHER = str(CheckpointKey(LINEAGE, 1, 2, 0))
PREFIX = checkpoints_prefix(LINEAGE)
SERVICES: tuple[Service, ...] = ("s3", "gs", "az")
T = 20.0


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with ObjectServer() as server:
        yield server


def opened(
    server: ObjectServer, service: Service = "s3", prefix: str = "some/prefix", bucket: str = BUCKET, **env: str
):
    return ObjectStore(service, bucket, prefix, server.env(service) | env)


@pytest.mark.parametrize("service", SERVICES)
def test_keys_lie_below_the_prefix(server, service):
    opened(server, service).put(KEY, b"data", timeout_s=T)
    opened(server, service, prefix="").put(KEY, b"at the top", timeout_s=T)

    assert server.objects == {f"some/prefix/{KEY}": b"data", KEY: b"at the top"}
    assert opened(server, service).keys(PREFIX, timeout_s=T) == [KEY]


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_that_takes_no_notice_of_the_condition_is_refused(service):
    """Two attempts could claim the same epoch there. What lies there is not harmed by finding out."""
    with ObjectServer(is_careless=True) as server:
        outcome = opened(server, service).put(KEY, b"data", timeout_s=T)

        assert isinstance(outcome, Denied)
        assert "two attempts could both win" in outcome.reason
        assert outcome.remedy


@pytest.mark.parametrize("service", SERVICES)
def test_the_condition_is_tried_out_once(server, service):
    store = opened(server, service)
    store.put(KEY, b"data", timeout_s=T)
    before = len(server.requests)
    store.put(OTHER, b"data", timeout_s=T)

    assert len(server.requests) - before <= 2  # Google takes two for each


def test_where_it_cannot_be_tried_out_the_put_is_in_doubt(server):
    store = opened(server)
    server.afterwards = lambda method: server.faults.update(PUT=(500, "InternalError"))

    outcome = store.put(KEY, b"data", timeout_s=T)

    assert isinstance(outcome, Unavailable)
    assert outcome.is_doubtful
    assert "not proven" in outcome.reason


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize(
    ("fault", "kind", "doubtful"),
    [
        ((403, "AccessDenied"), Denied, None),
        ((401, "Unauthorized"), Denied, None),
        ((400, "ExpiredToken"), Denied, None),
        ((404, "NoSuchBucket"), Denied, None),
        ((429, "TooManyRequests"), RateLimited, None),
        ((500, "InternalError"), Unavailable, True),
        ("cut-before", Unavailable, True),
        ("cut-after", Unavailable, True),
    ],
    ids=str,
)
def test_every_failure_is_told_apart(server, service, fault, kind, doubtful):
    server.faults = dict.fromkeys(("PUT", "POST"), fault)
    outcome = opened(server, service).put(KEY, b"data", timeout_s=T)

    assert isinstance(outcome, kind), outcome
    if isinstance(outcome, Denied):
        assert outcome.remedy
    if isinstance(outcome, Unavailable):
        assert outcome.is_doubtful is doubtful


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("fault", [(500, "InternalError"), "cut-before"], ids=str)
def test_a_hiccup_of_a_read_is_asked_again(server, service, fault):
    store = opened(server, service)
    store.put(KEY, b"data", timeout_s=T)
    server.faults["GET"] = fault
    threading.Timer(0.3, server.faults.clear).start()

    assert store.get(KEY, timeout_s=T) == b"data"


def test_how_long_to_wait_is_what_the_service_says(server):
    server.faults["PUT"] = (503, "SlowDown")
    assert opened(server).put(KEY, b"data", timeout_s=T) == RateLimited(7.0)


def test_a_service_without_conditions_is_named_as_such(server):
    server.faults["PUT"] = (501, "NotImplemented")
    outcome = opened(server).put(KEY, b"data", timeout_s=T)

    assert isinstance(outcome, Denied)
    assert "does not create conditionally" in outcome.remedy


def test_a_collision_with_another_request_is_tried_again(server):
    server.faults["PUT"] = (409, "ConditionalRequestConflict")
    threading.Timer(0.4, server.faults.clear).start()
    assert opened(server).put(KEY, b"data", timeout_s=T) == Stored(KEY, 4)

    server.faults["PUT"] = (409, "ConditionalRequestConflict")
    outcome = opened(server).put(OTHER, b"data", timeout_s=T)
    assert isinstance(outcome, Unavailable)
    assert not outcome.is_doubtful
    assert f"some/prefix/{OTHER}" not in server.objects


def test_without_a_connection_the_key_is_not_in_doubt(server):
    outcome = opened(server, AWS_ENDPOINT_URL="http://127.0.0.1:1").put(KEY, b"data", timeout_s=T)
    assert outcome == Unavailable("no connection", is_doubtful=False)


def test_a_put_whose_answer_was_lost_took_place_once(server):
    server.faults["PUT"] = "cut-after"
    opened(server).put(KEY, b"data", timeout_s=T)
    server.faults.clear()

    assert opened(server).put(KEY, b"other", timeout_s=T) == Exists(KEY)
    assert [r for r in server.requests if r.startswith("PUT")] == [f"PUT /{BUCKET}/some/prefix/{KEY}"] * 2


@pytest.mark.parametrize("service", SERVICES)
def test_an_answer_that_trickles_ends_in_time(server, service):
    """It never pauses for long, so that only a limit for the whole stops it."""
    opened(server, service).put(KEY, b"x" * 500, timeout_s=T)
    server.faults["GET"] = "trickle"

    began = time.monotonic()
    with pytest.raises(StoreUnreadable, match="no answer within 1 s"):
        opened(server, service).get(KEY, timeout_s=1)
    assert time.monotonic() - began < 3


def test_other_threads_run_while_a_listing_waits(server):
    """OpenDAL's blocking listing would hold them all."""
    store = opened(server)
    server.faults["GET"] = "stall"
    ticks, over = [], threading.Event()

    def tick() -> None:
        while not over.wait(0.02):
            ticks.append(time.monotonic())

    ticking = threading.Thread(target=tick)
    ticking.start()
    with pytest.raises(StoreUnreadable):
        store.first([PREFIX], timeout_s=1)
    over.set()
    ticking.join()

    assert max(b - a for a, b in itertools.pairwise(ticks)) < 0.5


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("fault", [(403, "AccessDenied"), (500, "Broken"), "cut-before"], ids=str)
def test_no_secret_is_in_what_is_said(server, service, fault):
    server.faults = dict.fromkeys(("PUT", "POST", "GET"), fault)
    store = opened(server, service)

    outcome = store.put(KEY, b"data", timeout_s=T)
    with pytest.raises(StoreUnreadable) as caught:
        store.get(KEY, timeout_s=T)

    said = f"{outcome}{caught.value}{caught.value.hint}{store!r}"
    for secret in (SECRET, SIGNATURE, ACCESS_KEY, "Signature", "sig=", KEY):
        assert secret not in said
    assert "\n" not in said


@pytest.mark.parametrize("service", SERVICES)
def test_a_bucket_that_does_not_exist_is_not_an_empty_one(server, service):
    store = opened(server, service, bucket="nothing")

    assert isinstance(store.put(KEY, b"data", timeout_s=T), Denied)
    for ask in (lambda: store.get(KEY, timeout_s=T), lambda: store.first([PREFIX], timeout_s=T)):
        with pytest.raises(StoreUnreadable):
            ask()


@pytest.mark.parametrize("service", SERVICES)
def test_credentials_that_are_refused_are_no_reason_to_try_again(server, service):
    server.faults = dict.fromkeys(("GET", "POST"), (403, "AccessDenied"))
    store = opened(server, service)

    for ask in (lambda: store.get(KEY, timeout_s=T), lambda: store.first([PREFIX], timeout_s=T)):
        with pytest.raises(StoreUnusable, match="403") as refused:
            ask()
        assert refused.value.exit_code == 2
        assert "may write there" in refused.value.hint


@pytest.mark.parametrize(
    ("service", "env"),
    [
        ("s3", {"AWS_ACCESS_KEY_ID": "only one"}),
        ("s3", {"AWS_SECRET_ACCESS_KEY": "only one"}),
        ("az", {}),
        ("az", {"AZURE_STORAGE_ACCOUNT_NAME": "account"}),
        ("az", {"AZURE_STORAGE_SAS_TOKEN": "sig=x"}),
    ],
)
def test_incomplete_credentials_are_refused_before_anything_is_asked(service, env):
    with pytest.raises(InputError, match="incomplete") as caught:
        ObjectStore(service, BUCKET, "", env)
    assert "only one" not in f"{caught.value}{caught.value.hint}"


def test_the_environment_and_the_files_of_the_machine_are_not_read(server, tmp_path):
    """Wrong keys and another endpoint lie everywhere that OpenDAL could look."""
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        "[default]\naws_access_key_id = wrong\naws_secret_access_key = wrong\n"
    )
    code = f"""
import os
from endstate_action.state.stores.objectstore import ObjectStore
print(ObjectStore("s3", {BUCKET!r}, "", {server.env("s3")!r}).put({KEY!r}, b"data", timeout_s=20), flush=True)
os._exit(0)  # as the command does: threads of OpenDAL's own may abort a process that is taken down in order
"""
    planted = {
        "HOME": str(tmp_path),
        "PYTHONPATH": str(Path(__file__).parents[4] / "src"),
        "AWS_ACCESS_KEY_ID": "wrong",
        "AWS_SECRET_ACCESS_KEY": "wrong",
        "AWS_SESSION_TOKEN": "wrong",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_REGION": "wrong-region",
        "AWS_PROFILE": "wrong",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | planted, check=True
    )
    assert done.stdout.startswith("Stored(")


def test_without_the_extra_its_name_is_given(tmp_path):
    """A process whose import of OpenDAL fails as it does where it is not installed."""
    (tmp_path / "opendal.py").write_text("raise ImportError('No module named opendal')")
    code = f"""
from endstate_action.errors import InputError
from endstate_action.state.stores.objectstore import ObjectStore
try:
    ObjectStore("s3", {BUCKET!r}, "", {{}})
except InputError as error:
    print(error, error.hint)
"""
    path = os.pathsep.join((str(tmp_path), str(Path(__file__).parents[4] / "src")))
    env = os.environ | {"PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert "endstate-action[objectstore]" in done.stdout
    assert "nothing was started" in done.stdout


def test_objects_of_others_below_the_prefix_are_no_keys(server):
    store = opened(server)
    store.put(KEY, b"data", timeout_s=T)
    for stray in (f"{KEY}/more", f"es1/{LINEAGE}/c/../x", f"es1/{LINEAGE}/cUPPER", f"es1/{LINEAGE}/c\n"):
        server.objects[f"some/prefix/{stray}"] = b"stray"

    assert store.keys(PREFIX, timeout_s=T) == [KEY]
    assert store.first([PREFIX], timeout_s=T) == KEY
