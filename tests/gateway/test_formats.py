"""Formats of texts: what each RFC allows and what it does not, and time that grows with the text alone."""

from __future__ import annotations

import pytest
from octavo_gateway.formats import FORMATS, fits

GOOD = {
    "date": ["2024-02-29", "0000-12-31", "2000-02-29"],
    "time": ["08:30:06Z", "08:30:06.283185z", "23:59:60Z", "15:59:60-08:00", "01:29:60+01:30", "12:00:00-00:00"],
    "date-time": ["1985-04-12T23:20:50.52Z", "1996-12-19t16:39:57-08:00", "1990-12-31T15:59:60-08:00"],
    "duration": ["P1Y2M3DT4H5M6S", "P4W", "PT36H", "P1DT12H", "PT0S", "P1M", "PT1M"],
    "email": ["joe.bloggs@example.com", "te~st@example.com", '"joe bloggs"@example.com', '"a\\"b"@example.com', "a@[127.0.0.1]",
              "a@[IPv6:::1]", "a@host"],
    "hostname": ["www.example.com", "xn--4gbwdl.xn--wgbh1c", "a", "1host", "a" * 63, "a-b.c"],
    "ipv4": ["192.168.0.1", "0.0.0.0"],
    "ipv6": ["::1", "12345::".replace("12345", "1234"), "::ffff:192.168.0.1", "1:2:3:4:5:6:7:8"],
    "uuid": ["2EB8AA08-aa98-11EA-b4aa-73b441d16380"],
    "uri": ["http://foo.bar/?baz=qux#quux", "http://u:p@[2001:db8::7]:80/a%20b?x=/?#f", "mailto:a@example.com", "urn:oasis:names",
            "tel:+1-816-555-1212", "file:///etc", "about:", "http:"],
}  # fmt: skip
BAD = {
    "date": ["2023-02-29", "1900-02-29", "2024-13-01", "2024-00-01", "2024-01-00", "24-01-01", "2024-1-1", "2024-01-01 ", "٢٠٢٤-01-01"],
    "time": ["08:30:06", "24:00:00Z", "08:60:00Z", "08:30:61Z", "22:59:60Z", "08:30:06-8:00", "01:02:03+24:00", "8:30:06Z", "08:30:06.Z"],
    "date-time": ["1985-04-12 23:20:50Z", "1985-04-12T23:20:50", "1985-04-31T00:00:00Z", "1985-04-12", ""],
    "duration": ["P", "PT", "P1YT", "P1D2H", "P2W1D", "1D", "PT1D", "P1Y2D", "PT1H2S", "P1.5D"],
    "email": ["2962", "a@", "@b", ".a@b", "a..b@c", "joe bloggs@example.com", '"a"b"@c', "a@-b", "a@[256.1.1.1]", "é@example.com"],
    "hostname": ["-a", "a-", "a..b", "a.", "", "a_b", "a" * 64, ".".join(["a" * 60] * 5), "é.ch"],
    "ipv4": ["127.0.0", "256.0.0.1", "01.2.3.4", "1.2.3.4/8", "a", "1٢.0.0.1"],
    "ipv6": [":::1", "12345::", "fe80::1%eth0", "1:2:3:4:5:6:7:8:9", "::1/64"],
    "uuid": ["2eb8aa08-aa98-11ea-b4aa-73b441d1638", "2eb8aa08aa9811eab4aa73b441d16380", "2eb8aa08-aa98-11ea-b4aa73b441d16380-"],
    "uri": ["//foo.bar", "/abc", "a b:c", "http://a b", "http://[::z]", "http://[1:2]", "http://a:x/", "1x:y", "http://a/%zz", "x:#a#b",
            "http://a/<b>", "http://a[1]/", ":x"],
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_each_format(name: str) -> None:
    assert [text for text in GOOD[name] if not fits(name, text)] == []
    assert [text for text in BAD[name] if fits(name, text)] == []


def test_a_format_that_is_not_known_is_left_unchecked() -> None:
    assert all(fits(name, "any thing") for name in ("regex", "iri", "uri-template", "colour", ""))


@pytest.mark.parametrize("name", FORMATS)
def test_no_text_takes_long(name: str) -> None:
    """An expression with two ways to read a text would never come to an end."""
    units = ("1", "a", "a.", "a-", "/a", "%41", "P1", "1:", "@", '"', '\\"', "::", "-")
    texts = [
        start + unit * 20_000 + end
        for unit in units
        for start in ("", "a:", '"', "http://", "P")
        for end in ("", "!", "\n")
    ]
    assert not all(fits(name, text) for text in texts)
