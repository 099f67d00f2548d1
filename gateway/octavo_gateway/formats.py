"""The `format` of a text in a JSON schema: RFC 3339's dates and times, and what names hosts, mailboxes and resources.

Each check takes time that grows with the text: no expression here can read a character in two ways.
"""

from __future__ import annotations

import ipaddress
import re
from calendar import monthrange
from collections.abc import Callable
from typing import Final

_DATE: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIME: Final = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.[0-9]+)?(?:[zZ]|([+-])([0-9]{2}):([0-9]{2}))")
_CLOCK: Final = r"T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DAYS: Final = r"(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
_DURATION: Final = re.compile(rf"P(?:{_DAYS}(?:{_CLOCK})?|{_CLOCK}|[0-9]+W)")
_LABEL: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOSTNAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
LONGEST_HOSTNAME: Final = 253
_ATOM: Final = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LOCAL: Final = re.compile(rf'{_ATOM}(?:\.{_ATOM})*|"(?:[ !#-\[\]-~]|\\[ -~])*"')
_UUID: Final = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_ESCAPED: Final = r"%[0-9A-Fa-f]{2}"
_NAME: Final = rf"(?:[A-Za-z0-9._~!$&'()*+,;=-]|{_ESCAPED})"
_CHAR: Final = rf"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|{_ESCAPED})"
_URI: Final = re.compile(
    rf"[A-Za-z][A-Za-z0-9+.-]*:"
    rf"(?://(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|{_ESCAPED})*@)?(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|{_NAME}*)(?::[0-9]*)?(?:/{_CHAR}*)*"
    rf"|/?(?:{_CHAR}+(?:/{_CHAR}*)*)?)"
    rf"(?:\?(?:{_CHAR}|[/?])*)?(?:#(?:{_CHAR}|[/?])*)?"
)


def fits(name: str, text: str) -> bool:
    """Whether a text has the format of this name; True for one that is not checked here."""
    check = FORMATS.get(name)
    return check is None or check(text)


def is_date(text: str) -> bool:
    """RFC 3339 full-date, of a day that there is."""
    if not (match := _DATE.fullmatch(text)):
        return False
    year, month, day = map(int, match.groups())
    # the Gregorian calendar repeats after 400 years, and Python's begins in the year 1
    return 1 <= month <= 12 and 1 <= day <= monthrange(2000 + year % 400, month)[1]


def is_time(text: str) -> bool:
    """RFC 3339 full-time: with an offset; a leap second is the last one of a day in UTC."""
    if not (match := _TIME.fullmatch(text)):
        return False
    hour, minute, second, offset_hour, offset_minute = (int(match[at] or 0) for at in (1, 2, 3, 5, 6))
    if max(hour, offset_hour) > 23 or max(minute, offset_minute) > 59 or second > 60:
        return False
    offset = (60 * offset_hour + offset_minute) * (-1 if match[4] == "-" else 1)
    return second < 60 or (60 * hour + minute - offset) % 1440 == 1439


def is_date_time(text: str) -> bool:
    """RFC 3339 date-time."""
    return text[10:11] in ("T", "t") and is_date(text[:10]) and is_time(text[11:])


def is_hostname(text: str) -> bool:
    """RFC 1123."""
    return len(text) <= LONGEST_HOSTNAME and _HOSTNAME.fullmatch(text) is not None


def is_email(text: str) -> bool:
    """RFC 5321 Mailbox, in ASCII."""
    local, _, domain = text.rpartition("@")
    if domain.startswith("[") and domain.endswith("]"):
        address = domain[1:-1]
        known = is_ipv6(address.removeprefix("IPv6:")) if address.startswith("IPv6:") else is_ipv4(address)
    else:
        known = is_hostname(domain)
    return known and _LOCAL.fullmatch(local) is not None


def is_ipv4(text: str) -> bool:
    """Four numbers, none with a leading zero."""
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


def is_ipv6(text: str) -> bool:
    """RFC 4291, without a zone."""
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return "%" not in text


def is_uri(text: str) -> bool:
    """RFC 3986 URI: absolute, in ASCII."""
    match = _URI.fullmatch(text)
    return match is not None and (match["address"] is None or is_ipv6(match["address"]))


FORMATS: Final[dict[str, Callable[[str], bool]]] = {
    "date": is_date,
    "time": is_time,
    "date-time": is_date_time,
    "duration": lambda text: _DURATION.fullmatch(text) is not None,  # RFC 3339, appendix A
    "email": is_email,
    "hostname": is_hostname,
    "ipv4": is_ipv4,
    "ipv6": is_ipv6,
    "uuid": lambda text: _UUID.fullmatch(text) is not None,
    "uri": is_uri,
}
"""What is checked; a format of another name is left unchecked."""
