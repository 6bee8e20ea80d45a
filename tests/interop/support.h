// SPDX-License-Identifier: Apache-2.0
// The helpers of the checkpoint tests, for tests of other programs' formats.
#pragma once

#include "checkpoint/support.h"

namespace tessera::interop::test {
using namespace checkpoint::test;  // NOLINT(google-build-using-namespace)
}  // namespace tessera::interop::test
