// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/dropout_record.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::nn {
namespace {

thread_local DropoutRecord* current = nullptr;

}  // namespace

DropoutRecord::DropoutRecord() {
  TESSERA_ASSERT(current == nullptr);
  current = this;
}

DropoutRecord::~DropoutRecord() {
  current = nullptr;
}

void DropoutRecord::add(std::string_view block, std::string_view site, double p) {
  if (current == nullptr) return;
  const auto same = [&](const Place& place) { return place.block == block && place.site == site; };
  if (std::ranges::any_of(current->places_, same)) return;
  current->places_.push_back({std::string(block), std::string(site), p});
}

}  // namespace tessera::nn
