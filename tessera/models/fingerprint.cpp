// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/fingerprint.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/base/files.h"
#include "tessera/nn/block.h"

namespace tessera::models {

std::string fingerprint_of(const Resolved& model, const WeightSource& weights) {
  constexpr std::int64_t kSample = 256;
  files::Hasher hasher;
  std::vector<float> values(kSample);
  for (const auto& info : nn::parameters_of(model.model)) {
    hasher.update(std::as_bytes(std::span(info->name)));
    hasher.update(std::as_bytes(std::span(info->shape)));
    const std::int64_t numel = info->numel(), count = std::min(kSample, numel);
    for (const std::int64_t begin : {std::int64_t{0}, (numel - count) / 2, numel - count}) {
      weights(*info, begin, begin + count, values.data());
      hasher.update(std::as_bytes(std::span(values).first(static_cast<std::size_t>(count))));
    }
  }
  return files::hex64(hasher.digest());
}

}  // namespace tessera::models
