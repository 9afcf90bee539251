"""What leaves the machine can be read by nobody else, and nobody else's is believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endstate_action.errors import InputError
from endstate_action.state.seal import (
    OVERHEAD_BYTES,
    Damaged,
    NewerSeal,
    NotSealed,
    OtherKey,
    SealError,
    derive_key,
    open_sealed,
    seal,
)

SECRET = "a secret that is long enough"
KEY = derive_key(SECRET, explicit=True)
OTHER = derive_key("another secret, as long as that", explicit=True)
NAME = "es1/0123456789ab/c0001-000001-00000"


@given(st.binary(max_size=2_000))
def test_what_was_sealed_opens_as_it_was(data):
    sealed = seal(KEY, NAME, data)
    assert open_sealed(KEY, NAME, sealed) == data
    assert len(sealed) == len(data) + OVERHEAD_BYTES


def test_the_content_cannot_be_read_and_no_two_seals_are_equal():
    assert b"transcript" not in seal(KEY, NAME, b"transcript")
    assert seal(KEY, NAME, b"transcript") != seal(KEY, NAME, b"transcript")


def test_the_same_secret_is_the_same_key_on_every_machine():
    """The id is written down: a release that derives another key could open nothing of an earlier one."""
    again = derive_key(f" {SECRET}\n", explicit=True)
    assert open_sealed(again, NAME, seal(KEY, NAME, b"x")) == b"x"
    assert again.id.hex() == "e3d1ed5997b14c49"


def test_a_state_key_and_an_api_key_of_the_same_text_are_two_keys():
    with pytest.raises(OtherKey):
        open_sealed(derive_key(SECRET, explicit=False), NAME, seal(KEY, NAME, b"x"))


def test_another_key_is_told_from_damage():
    with pytest.raises(OtherKey):
        open_sealed(OTHER, NAME, seal(KEY, NAME, b"x"))


def test_a_changed_bit_anywhere_opens_nothing():
    sealed = seal(KEY, NAME, b"some content")
    for at in range(len(sealed)):
        changed = bytearray(sealed)
        changed[at] ^= 1
        with pytest.raises(SealError):
            open_sealed(KEY, NAME, bytes(changed))


def test_what_was_cut_short_anywhere_opens_nothing():
    sealed = seal(KEY, NAME, b"some content")
    for length in range(len(sealed)):
        with pytest.raises((NotSealed, NewerSeal, Damaged)):
            open_sealed(KEY, NAME, sealed[:length])


def test_nothing_opens_under_another_name():
    with pytest.raises(Damaged):
        open_sealed(KEY, NAME.replace("c0001", "c0002"), seal(KEY, NAME, b"x"))


def test_another_keys_seal_that_claims_to_be_ours_is_damage():
    """Who knows our key's public id cannot pass for us."""
    header = len(b"endstate seal 1")
    forged = bytearray(seal(OTHER, NAME, b"x"))
    forged[header : header + 8] = KEY.id
    with pytest.raises(Damaged):
        open_sealed(KEY, NAME, bytes(forged))


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"endstate pack 1 {}", b"endstate seal"])
def test_what_is_no_seal_is_told_from_damage(data):
    with pytest.raises(NotSealed):
        open_sealed(KEY, NAME, data)


def test_a_newer_format_is_told_from_damage():
    with pytest.raises(NewerSeal):
        open_sealed(KEY, NAME, seal(KEY, NAME, b"x").replace(b"endstate seal 1", b"endstate seal 2", 1))


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("secret", ["", " \n ", "fifteen letters", f"  {'x' * 15}  "])
def test_a_secret_that_could_be_guessed_is_refused_and_not_shown(secret, explicit):
    with pytest.raises(InputError) as caught:
        derive_key(secret, explicit=explicit)
    assert caught.value.exit_code == 2
    assert not secret.strip() or secret.strip() not in f"{caught.value} {caught.value.hint}"


def test_a_key_shows_nothing_of_its_secret():
    assert KEY._value.hex() not in repr(KEY)
    assert repr(KEY._value) not in repr(KEY)
    assert SECRET not in repr(KEY)


def test_a_secret_of_any_bytes_makes_a_key():
    """Variables that are no UTF-8 arrive as surrogates."""
    assert derive_key("\udcff" * 16, explicit=True).id != KEY.id
