// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/huggingface/preprocessing_file.h"

#include <cstdint>
#include <optional>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/data/images/preprocess.h"
#include "tessera/tasks/labelled_images.h"

namespace tessera::interop {

void add_preprocessing(std::vector<std::pair<std::string, std::string>>& files,
                       const std::string& name,
                       const json::Value& config) {
  const json::Value* const size = config.find("image_size");
  const std::optional<std::int64_t> side = size != nullptr ? size->as_integer() : std::nullopt;
  TESSERA_ASSERT(side.has_value());
  try {
    std::string text = data::images::preprocessor_config(tasks::preprocessing_of(name, *side));
    std::erase_if(files, [](const auto& file) { return file.first == tasks::kPreprocessorFile; });
    files.emplace_back(tasks::kPreprocessorFile, std::move(text));
  } catch (const Error& error) {
    log::warn_once(fmt::format("{} is left out: {}", tasks::kPreprocessorFile, error.what()));
  }
}

}  // namespace tessera::interop
