// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/duplicates.h"

namespace tessera::tasks {

void Duplicates::add(std::uint64_t hash) {
  if (!keeps(hash)) return;
  if (++times_[hash] > 1) ++repeated_;
  while (times_.size() > most_)
    thin_out();
}

std::int64_t Duplicates::weight_of(std::uint64_t hash) const {
  return times_.contains(hash) ? std::int64_t{1} << shift_ : 0;
}

void Duplicates::thin_out() {
  ++shift_;
  std::erase_if(times_, [&](const auto& one) {
    if (keeps(one.first)) return false;
    repeated_ -= one.second - 1;
    return true;
  });
}

}  // namespace tessera::tasks
