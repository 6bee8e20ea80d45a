// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/model_source.h"

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::planner {
namespace {

const ModelReader& reader() {
  return model_readers().get("files");
}

}  // namespace

Registry<ModelReader>& model_readers() {
  static Registry<ModelReader> registry("reader of models");
  return registry;
}

ModelSource open_model_source(const std::filesystem::path& path) {
  return reader().open(path);
}

models::WeightSource source_weights(const ModelSource& source, const models::Resolved& resolved) {
  return reader().weights(source, resolved);
}

data::TokenizerPtr source_tokenizer(const ModelSource& source) {
  TESSERA_REQUIRE(
      source.says_tokenizer,
      Config,
      fmt::format("{} was converted from weights without a tokenizer", source.folder.string()),
      "name one with tokenizer.type (and tokenizer.vocab, tokenizer.merges)");
  return source.hugging_face ? data::tokenizer_from_folder(source.folder)
                             : data::make_tokenizer(source.tokenizer);
}

}  // namespace tessera::planner
