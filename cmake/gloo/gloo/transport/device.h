// SPDX-License-Identifier: Apache-2.0
// Declared for ProcessGroupGloo.hpp; see algorithm.h.
#pragma once

namespace gloo::transport {
class Device;
}
