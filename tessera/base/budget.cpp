// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/budget.h"

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::budget {

void require_bytes(std::uint64_t amount,
                   std::uint64_t most,
                   const std::string& where,
                   const std::string& what,
                   const std::string& fix) {
  TESSERA_REQUIRE(amount <= most,
                  Data,
                  fmt::format("{}: {} of {}, more than the {} that are read",
                              where,
                              what,
                              text::bytes(amount),
                              text::bytes(most)),
                  fix);
}

void require_count(std::uint64_t amount,
                   std::uint64_t most,
                   const std::string& where,
                   const std::string& what,
                   const std::string& fix) {
  TESSERA_REQUIRE(
      amount <= most,
      Data,
      fmt::format("{}: {} {}, more than the {} that are read", where, amount, what, most),
      fix);
}

void require_line(std::uint64_t bytes, const std::string& file, std::int64_t line) {
  if (bytes <= kLineBytes) return;
  require_bytes(bytes,
                kLineBytes,
                fmt::format("{}:{}", file, line),
                "a line",
                "write one record or text a line");
}

}  // namespace tessera::budget
