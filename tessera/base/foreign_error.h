// SPDX-License-Identifier: Apache-2.0
// Errors of other libraries as errors of tessera.
#pragma once

#include <string>

#include "tessera/base/error.h"

namespace tessera {

/// The error for a message of the standard library or libtorch: Error{Memory} if it says that
/// memory or a thread could not be had, else Error{Bug}.
Error foreign_error(const std::string& what, Where where = Where::here());

}  // namespace tessera
