# SPDX-License-Identifier: Apache-2.0
# The C++ code of pages of docs/adding/, as one file: awk -f code_of_page.awk PAGE... A block that begins with the name of a header is
# that header; its guard, and the lines that include it, are left out.
FNR == 1 { inside = 0 }
/^```cpp$/ { inside = 1; printf "#line %d \"%s\"\n", FNR + 1, FILENAME; next }
/^```$/ { inside = 0; next }
!inside { next }
/^\/\/ tessera\/.*\.h$/ { header[$2] = 1 }
/^#pragma once$/ { print ""; next }
/^#include "/ { split($0, words, "\""); if (words[2] in header) { print ""; next } }
{ print }
