// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/peft/export.h"

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/interop/peft/folder.h"
#include "tessera/interop/peft/saved_adapter.h"
#include "tessera/models/model_source.h"

namespace tessera::interop {

AdapterExport open_adapter_export(const std::filesystem::path& path) {
  const models::ModelSource source = models::open_model_source(path);
  TESSERA_REQUIRE(!source.adapter.empty(),
                  Config,
                  fmt::format("{} holds no adapter", path.string()),
                  "name a run with the section \"adapter\", or a folder of PEFT's");
  config::Problems problems;
  const std::int64_t tokens = source.says_tokenizer && !source.hugging_face
                                  ? models::source_tokenizer(source)->size()
                                  : source.model->vocab_size.value_or(1);
  const models::Resolved resolved =
      models::resolve(source.model, tokens, std::nullopt, problems, {}, source.objective);
  problems.raise();
  const models::WeightMap& map = models::families().get(source.model.family()).weight_map;
  const SavedAdapter saved = open_saved_adapter(path);
  AdapterExport out;
  // The options of the source fit the tensors of PEFT's folder (fit_to_adapter).
  out.adapter =
      models::find_adapter(source.adapter_options, resolved, map, models::AdapterUse::Merged);
  out.base = saved.base;
  out.config = peft_config(out.adapter, out.base, resolved.objective.name);
  out.tensors = peft_tensors(out.adapter, map, saved.weights(out.adapter, map));
  return out;
}

}  // namespace tessera::interop
