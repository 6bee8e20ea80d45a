// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace tessera::test {

/// Root of the source tree that the tests read their files from. The path is compiled into
/// support/main.cpp alone, so that the objects of all other tests are the same in every clone and a
/// compiler cache can share them.
std::filesystem::path source_dir();

}  // namespace tessera::test
