// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/adapter_export.h"

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/interop/peft.h"
#include "tessera/planner/model_source.h"

namespace tessera::interop {

AdapterExport open_adapter_export(const std::filesystem::path& path) {
  const planner::ModelSource source = planner::open_model_source(path);
  TESSERA_REQUIRE(!source.adapter.empty(),
                  Config,
                  fmt::format("{} holds no adapter", path.string()),
                  "name a run with the section \"adapter\", or a folder of PEFT's");
  config::Problems problems;
  const std::int64_t tokens = source.says_tokenizer && !source.hugging_face
                                  ? planner::source_tokenizer(source)->size()
                                  : source.model->vocab_size.value_or(1);
  const models::Resolved resolved =
      models::resolve(source.model, tokens, std::nullopt, problems, {}, source.objective);
  problems.raise();
  const models::WeightMap& map = models::families().get(source.model.family()).weight_map;
  AdapterExport out;
  out.adapter = models::find_adapter(source.adapter_options, resolved, map);
  models::WeightSource weights;
  if (is_peft(source.adapter)) {
    const PeftFolder peft = open_peft(source.adapter);
    out.base = peft.base;
    weights = peft_weights(peft, out.adapter, map);
  } else {
    if (source.base != nullptr)
      out.base = (source.base->foreign ? *source.base->foreign : source.base->folder).string();
    const auto opened = std::make_shared<const checkpoint::Checkpoint>(source.adapter);
    weights = [opened](const ParamInfo& info, std::int64_t begin, std::int64_t end, float* to) {
      const checkpoint::PieceBytes piece{info.name,
                                         DType::F32,
                                         info.shape,
                                         {mesh::whole(info.shape), begin, end},
                                         {reinterpret_cast<std::byte*>(to),
                                          static_cast<std::size_t>(end - begin) * sizeof(float)}};
      opened->load({&piece, 1});
    };
  }
  out.config = peft_config(out.adapter, out.base, resolved.objective.name);
  out.tensors = peft_tensors(out.adapter, map, std::move(weights));
  return out;
}

}  // namespace tessera::interop
