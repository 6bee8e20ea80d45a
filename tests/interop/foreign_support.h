// SPDX-License-Identifier: Apache-2.0
// Helpers for tests of other programs' checkpoints.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "interop/support.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/interop/foreign.h"

namespace tessera::interop::test {

inline std::string bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * 4};
}

inline std::vector<float> values_of(const checkpoint::StreamedTensor& tensor) {
  std::vector<float> out(tensor.bytes() / 4);
  // Read in pieces of three elements, so that requests for a part are tested.
  for (std::size_t at = 0; at < out.size(); at += 3) {
    const std::size_t end = std::min(at + 3, out.size());
    tensor.read(static_cast<std::int64_t>(at),
                static_cast<std::int64_t>(end),
                reinterpret_cast<std::byte*>(out.data() + at));
  }
  return out;
}

class ForeignCheckpoints : public ::testing::Test {
 protected:
  [[nodiscard]] std::filesystem::path path(const std::string& name) const {
    return dir.path() / name;
  }
  void refused(const std::filesystem::path& what, const std::string& reason) {
    const Error error = error_of([&] {
      if (!open_foreign(what)) throw Error(Error::Kind::Bug, "nobody recognises it");
    });
    EXPECT_TRUE(error.kind() == Error::Kind::Format || error.kind() == Error::Kind::Unsupported)
        << error.text();
    EXPECT_THAT(error.text(), ::testing::HasSubstr(reason));
  }
  files::TempDir dir;
};

}  // namespace tessera::interop::test
