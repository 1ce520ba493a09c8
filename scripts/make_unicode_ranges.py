#!/usr/bin/env python3
"""Writes apps/gpt/unicode_ranges.h: which characters are letters, numbers and spaces, from Python's Unicode database.

usage: python3 scripts/make_unicode_ranges.py
"""

import pathlib
import sys
import unicodedata

TARGET = pathlib.Path(__file__).resolve().parent.parent / "apps" / "gpt" / "unicode_ranges.h"
# The property White_Space, which the database of Python does not have.
SPACES = [*range(0x9, 0xE), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000]


def ranges(characters):
    found = []
    for c in characters:
        if found and found[-1][1] == c - 1:
            found[-1][1] = c
        else:
            found.append([c, c])
    return found


def table(name, comment, characters):
    text, line = f"/// {comment}\ninline constexpr CharacterRange {name}[] = {{\n", "   "
    for first, last in ranges(characters):
        item = f" {{0x{first:X}, 0x{last:X}}},"
        if len(line) + len(item) > 118:
            text, line = text + line + "\n", "   "
        line += item
    return text + line + "\n};\n"


def main():
    def of(category):
        return [c for c in range(sys.maxunicode + 1) if unicodedata.category(chr(c)).startswith(category)]

    TARGET.write_text(f"""#pragma once

// Written by scripts/make_unicode_ranges.py from Unicode {unicodedata.unidata_version}. For unicode.cpp only.

namespace lockstep::gpt {{

/// Characters first ... last.
struct CharacterRange {{
  char32_t first, last;
}};

// clang-format off
{table("kLetters", "General category L.", of("L"))}
{table("kNumbers", "General category N.", of("N"))}
{table("kSpaces", "White_Space.", SPACES)}// clang-format on

}}  // namespace lockstep::gpt
""")


if __name__ == "__main__":
    main()
