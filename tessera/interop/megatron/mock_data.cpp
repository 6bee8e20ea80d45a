// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/megatron/mock_data.h"

#include <algorithm>
#include <cstddef>
#include <random>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/files.h"
#include "tessera/data/token_writer.h"

namespace tessera::interop::megatron {

std::filesystem::path mock_tokens(std::int64_t vocabulary, std::int64_t end) {
  namespace fs = std::filesystem;
  constexpr std::int64_t kLongest = 4096, kTokens = 2'000'000;
  const fs::path prefix = files::cache_dir() / "parts" / fmt::format("mock-{}-{}", vocabulary, end);
  const fs::path tokens = prefix.string() + ".bin";
  std::error_code failed;
  // The index is written last.
  if (fs::exists(prefix.string() + ".idx", failed)) return tokens;
  fs::create_directories(prefix.parent_path(), failed);
  const data::TokenWidth width = data::token_width(std::max(vocabulary, end + 1));
  data::TokenWriter writer(prefix, width);
  std::mt19937 generator(0);
  std::vector<std::int32_t> ids;
  std::vector<std::byte> bytes;
  for (std::int64_t written = 0; written < kTokens; written += std::ssize(ids)) {
    const std::int64_t length = 1 + static_cast<std::int64_t>(generator() % (kLongest - 1));
    ids.clear();
    for (std::int64_t i = 1; i < length; ++i)
      ids.push_back(static_cast<std::int32_t>(1 + (i - 1) % (vocabulary - 1)));
    ids.push_back(static_cast<std::int32_t>(end));
    bytes.clear();
    data::append_tokens(ids, width, bytes);
    writer.begin_document();
    writer.write(bytes);
    writer.add_to_document(std::ssize(ids));
  }
  writer.finish();
  return tokens;
}

}  // namespace tessera::interop::megatron
