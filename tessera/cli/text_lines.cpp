// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/text_lines.h"

#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/config/json.h"

namespace tessera::cli {

std::vector<std::string> read_text_lines(const std::string& file, const std::string& field) {
  std::vector<std::string> out;
  std::vector<std::string> lines = text::split(files::read(file), '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  const bool json_lines = file.ends_with(".jsonl");
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string place = fmt::format("{}:{}", file, i + 1);
    if (json_lines) {
      const json::Value value = json::parse_strict(lines[i], place);
      const json::Value* found = value.is_object() ? value.find(field) : nullptr;
      TESSERA_REQUIRE(found != nullptr && found->is_string(),
                      Data,
                      place + " has no text \"" + field + "\"",
                      "name the member that holds the text with --field");
      out.push_back(found->as_string());
    } else {
      TESSERA_REQUIRE(!text::find_invalid_utf8(lines[i]),
                      Data,
                      place + " is not valid UTF-8",
                      "save the file in UTF-8");
      out.push_back(std::move(lines[i]));
    }
  }
  return out;
}

}  // namespace tessera::cli
