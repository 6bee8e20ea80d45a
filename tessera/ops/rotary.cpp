// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/rotary.h"

#include <cmath>
#include <string>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/ops/arguments.h"
#include "tessera/ops/backend.h"
#include "tessera/ops/op_log.h"

namespace tessera::ops {
namespace {

void check_table(const at::Tensor& x, const RotaryTable& table) {
  const at::Tensor& c = table.cosine_BTP;
  const bool fits = x.dim() == 4 && c.dim() == 3 && c.sizes() == table.sine_BTP.sizes() &&
                    (c.size(0) == 1 || c.size(0) == x.size(0)) && c.size(1) == x.size(2) &&
                    2 * c.size(2) <= x.size(3);
  TESSERA_REQUIRE(fits,
                  Shape,
                  "heads of " + shape(x) + " with a table of " + shape(c),
                  "expected [batch, heads, tokens, channels] and [batch or 1, tokens, pairs] with "
                  "at most half as many pairs as channels");
}

at::Tensor turned(const char* name, const at::Tensor& x_BHTK, const RotaryTable& table, int way) {
  check_table(x_BHTK, table);
  const std::int64_t B = x_BHTK.size(0), H = x_BHTK.size(1), T = x_BHTK.size(2), K = x_BHTK.size(3);
  at::Tensor y = at::empty({B, T, H, K}, x_BHTK.options()).transpose(1, 2);
  if (x_BHTK.is_meta() || x_BHTK.numel() == 0) return y;
  const OpScope scope(name, [&] {
    return OpWork{.bytes = 2.0 * static_cast<double>(x_BHTK.nbytes()), .shape = shape(x_BHTK)};
  });
  backend(x_BHTK.device()).rotary(x_BHTK, table, way, y);
  return y;
}

}  // namespace

std::vector<double> rotary_frequencies(std::int64_t channels, double base) {
  TESSERA_REQUIRE(channels > 0 && channels % 2 == 0,
                  Shape,
                  "rotary positions of " + std::to_string(channels) + " channels",
                  "channels turn in pairs");
  std::vector<double> out;
  for (std::int64_t pair = 0; pair < channels / 2; ++pair)
    out.push_back(std::pow(base, -2.0 * static_cast<double>(pair) / static_cast<double>(channels)));
  return out;
}

RotaryTable rotary_table(const at::Tensor& positions_BT, const std::vector<double>& frequencies) {
  TESSERA_REQUIRE(positions_BT.dim() == 2 && positions_BT.scalar_type() == at::kLong,
                  Shape,
                  std::string("positions of ") + c10::toString(positions_BT.scalar_type()) +
                      shape(positions_BT),
                  "expected int64 of [batch, tokens]");
  const auto P = static_cast<std::int64_t>(frequencies.size());
  const at::TensorOptions floats = positions_BT.options().dtype(at::kFloat);
  RotaryTable table{at::empty({positions_BT.size(0), positions_BT.size(1), P}, floats),
                    at::empty({positions_BT.size(0), positions_BT.size(1), P}, floats)};
  if (positions_BT.is_meta()) return table;
  backend(positions_BT.device()).rotary_table(positions_BT, frequencies, table);
  return table;
}

at::Tensor rotary(const at::Tensor& x_BHTK, const RotaryTable& table) {
  return turned("rotary", x_BHTK, table, 1);
}

at::Tensor rotary_backward(const at::Tensor& dy_BHTK, const RotaryTable& table) {
  return turned("rotary backward", dy_BHTK, table, -1);
}

}  // namespace tessera::ops
