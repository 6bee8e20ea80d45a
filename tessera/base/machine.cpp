// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/machine.h"

#include <array>

namespace tessera {

std::string_view name(ShapeClass shape) noexcept {
  constexpr std::array<std::string_view, kNumShapeClasses> kNames = {"large product",
                                                                     "tall product",
                                                                     "few rows",
                                                                     "grouped products",
                                                                     "attention",
                                                                     "rows",
                                                                     "elementwise",
                                                                     "update"};
  return kNames[static_cast<std::size_t>(shape)];
}

}  // namespace tessera
