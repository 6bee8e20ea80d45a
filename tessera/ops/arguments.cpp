// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/arguments.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/tensor/upload.h"

namespace tessera::ops {
namespace {

std::int64_t total_length(const std::vector<Run>& runs) {
  std::int64_t sum = 0;
  for (const Run& run : runs)
    sum += run.end - run.begin;
  return sum;
}

}  // namespace

std::string shape(const at::Tensor& x) {
  std::string out = "[";
  for (std::int64_t dim = 0; dim < x.dim(); ++dim) {
    out += (dim > 0 ? ", " : "") + std::to_string(x.size(dim));
  }
  return out + "]";
}

void check_destination(const at::Tensor& to, std::int64_t numel, const char* name) {
  TESSERA_REQUIRE(to.scalar_type() == at::kFloat && to.is_contiguous() && to.numel() == numel,
                  Shape,
                  std::string(name) + " is " + c10::toString(to.scalar_type()) + shape(to),
                  "pass contiguous float of " + std::to_string(numel) + " elements");
}

void check_ids(const at::Tensor& ids, std::int64_t rows) {
  TESSERA_REQUIRE(ids.scalar_type() == at::kLong, Data, "token ids are not int64", "convert them");
  const at::Tensor on_host = host_values(ids).contiguous();
  const std::int64_t* id = on_host.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < on_host.numel(); ++i) {
    TESSERA_REQUIRE(id[i] >= 0 && id[i] < rows,
                    Data,
                    "token id " + std::to_string(id[i]) + " at position " + std::to_string(i) +
                        " is outside the table of " + std::to_string(rows) + " rows",
                    "use the tokenizer that the model's vocabulary belongs to");
  }
}

DropoutRuns dropout_runs(const at::Tensor& x, const DropoutKey& key) {
  const auto parts = static_cast<std::int64_t>(key.parts.size());
  DropoutRuns runs;
  runs.each = x.numel() / x.size(0);
  runs.length = parts == 0 ? runs.each : runs.each / parts;
  runs.run = key.columns > 1 ? x.size(-1) : runs.length;
  TESSERA_REQUIRE((parts == 0 || runs.length * parts == runs.each) && runs.length % runs.run == 0,
                  Shape,
                  "dropout of " + shape(x) + " in " + std::to_string(parts) + " equal parts",
                  "");
  return runs;
}

std::uint32_t dropout_threshold(double p) {
  return static_cast<std::uint32_t>(std::ceil(p * 0x1.0p24));
}

float dropout_scale(double p) {
  return static_cast<float>(1.0 / (1.0 - p));
}

std::vector<at::Tensor> fused_heads(const at::Tensor& x_BHNK, std::int64_t parts) {
  const at::Tensor all = at::empty(
      {x_BHNK.size(0), x_BHNK.size(2), parts, x_BHNK.size(1), x_BHNK.size(3)}, x_BHNK.options());
  std::vector<at::Tensor> out;
  for (std::int64_t part = 0; part < parts; ++part)
    out.push_back(all.select(2, part).transpose(1, 2));
  return out;
}

double attention_scale(const AttentionArgs& args, const at::Tensor& q_BHTK) {
  return args.scale != 0.0 ? args.scale : 1.0 / std::sqrt(static_cast<double>(q_BHTK.size(-1)));
}

KeyBand key_band(const AttentionArgs& args) {
  KeyBand out;
  if (args.causal) out.end = args.query_offset + 1;
  if (args.window == 0) return out;
  out.begin = args.query_offset - args.window + (args.causal ? 1 : 0);
  if (!args.causal) out.end = args.query_offset + args.window + 1;
  return out;
}

DropoutWindow attention_window(const AttentionArgs& args,
                               const at::Tensor& q_BHTK,
                               const at::Tensor& k_BGSK) {
  const std::int64_t T = q_BHTK.size(2), S = k_BGSK.size(2);
  if (!args.place.has_value()) {
    return {.first_matrix = args.first_head,
            .rows = T,
            .columns = S,
            .row_runs = {{0, T}},
            .column_runs = {{0, S}}};
  }
  const AttentionPlace& place = *args.place;
  const std::int64_t queries = total_length(place.queries), keys = total_length(place.keys);
  TESSERA_REQUIRE(queries == T && keys == S,
                  Shape,
                  fmt::format("attention of q {} and k {} whose place has {} queries and {} keys",
                              shape(q_BHTK),
                              shape(k_BGSK),
                              queries,
                              keys),
                  "give the place of these very tokens");
  return {.first_matrix = args.first_head,
          .rows = place.tokens,
          .columns = place.of_keys > 0 ? place.of_keys : place.tokens,
          .row_runs = place.queries,
          .column_runs = place.keys};
}

}  // namespace tessera::ops
