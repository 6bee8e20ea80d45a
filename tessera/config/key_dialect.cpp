// SPDX-License-Identifier: Apache-2.0
#include "tessera/config/key_dialect.h"

#include <fmt/format.h>

#include "tessera/base/text.h"

namespace tessera::config {

std::string note_of(const TakenKey& key) {
  return fmt::format("{} is accepted but has no effect here: {}", key.path, key.why);
}

std::string amp_type(std::string_view mode) {
  return text::lower(mode.substr(mode.rfind('.') + 1));
}

Registry<KeyDialect>& key_dialects() {
  static Registry<KeyDialect> registry("dialect of keys");
  return registry;
}

const KeyDialect& key_dialect() {
  return key_dialects().get("configuration files");
}

}  // namespace tessera::config
