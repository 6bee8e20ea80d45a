// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/stop_strings.h"

#include <algorithm>

namespace tessera::engine {

std::size_t find_stop(std::string_view text,
                      const std::vector<std::string>& stops,
                      std::size_t from) {
  std::size_t first = std::string_view::npos;
  for (const std::string& stop : stops)
    first = std::min(first, text.find(stop, from));
  return first;
}

bool GeneratedBytes::append(std::string_view bytes,
                            bool hidden,
                            const std::vector<std::string>& stops) {
  const std::size_t before = bytes_.size();
  bytes_ += bytes;
  if (hidden) hidden_.emplace_back(before, bytes_.size());
  std::size_t longest = 1;
  for (const std::string& stop : stops)
    longest = std::max(longest, stop.size());
  const std::size_t first = find_stop(bytes_, stops, before - std::min(before, longest - 1));
  if (first == std::string::npos) return false;
  bytes_.resize(first);
  return true;
}

std::string GeneratedBytes::shown() const {
  std::string text;
  std::size_t at = 0;
  for (const auto& [begin, end] : hidden_) {
    if (begin >= bytes_.size()) break;
    text.append(bytes_, at, begin - at);
    at = std::min(end, bytes_.size());
  }
  return text.append(bytes_, at);
}

}  // namespace tessera::engine
