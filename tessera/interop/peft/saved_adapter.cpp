// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/peft/saved_adapter.h"

#include <cstddef>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/interop/peft/folder.h"
#include "tessera/models/model_source.h"

namespace tessera::interop {

SavedAdapter open_saved_adapter(const std::filesystem::path& path) {
  SavedAdapter out;
  if (is_peft(path)) {
    PeftFolder peft = open_peft(path);
    out.options = peft.options;
    out.base = peft.base;
    out.weights = [peft = std::move(peft)](const models::Adapter& adapter,
                                           const models::WeightMap& map) {
      return peft_weights(peft, adapter, map);
    };
    return out;
  }
  const models::ModelSource source = models::open_model_source(path);
  TESSERA_REQUIRE(!source.adapter.empty(),
                  Config,
                  fmt::format("{} holds no adapter", path.string()),
                  "name a run with the section \"adapter\", or a folder of PEFT's");
  out.options = source.adapter_options;
  out.fingerprint = source.base_fingerprint;
  if (source.base != nullptr)
    out.base = (source.base->foreign ? *source.base->foreign : source.base->folder).string();
  out.weights = [opened = std::make_shared<const checkpoint::Checkpoint>(source.adapter)](
                    const models::Adapter& /*adapter*/, const models::WeightMap& /*map*/) {
    return [opened](const ParamInfo& info, std::int64_t begin, std::int64_t end, float* to) {
      const checkpoint::PieceBytes piece{info.name,
                                         DType::F32,
                                         info.shape,
                                         {mesh::whole(info.shape), begin, end},
                                         {reinterpret_cast<std::byte*>(to),
                                          static_cast<std::size_t>(end - begin) * sizeof(float)}};
      opened->load({&piece, 1});
    };
  };
  return out;
}

}  // namespace tessera::interop
