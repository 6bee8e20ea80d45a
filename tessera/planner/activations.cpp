// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/activations.h"

#include <algorithm>

#include "tessera/nn/tensor_parallel/tensor_parallel.h"
#include "tessera/ops/cross_entropy.h"
#include "tessera/planner/train_config.h"
#include "tessera/tensor/dtype.h"

namespace tessera::planner {
namespace {

// How many parts tensor-parallel ranks make of a micro-batch, of the channels between layers, and
// of heads, features of the MLP and the vocabulary.
struct Parts {
  std::int64_t samples = 1, channels = 1, features = 1;
};
Parts parts(const Plan& plan) {
  const TensorOptions::Grid grid = plan.config.parallel.tensor.grid();
  if (plan.weight_layout.tensor == nn::TensorMode::OneD) return {1, 1, grid.size()};
  return {grid.size() / grid.row, grid.row, grid.row};
}

std::int64_t largest_part(std::int64_t size, std::int64_t parts) {
  return (size + parts - 1) / parts;
}

// The largest share of `size` heads or features that one of the tensor-parallel ranks holds.
std::int64_t share(const Plan& plan, std::int64_t size) {
  return largest_part(size, parts(plan).features);
}

// Of `batch` samples, or the tokens of them: those of one rank.
std::int64_t own_samples(const Plan& plan, std::int64_t batch) {
  return largest_part(batch, parts(plan).samples);
}

// Of what runs between layers.
std::int64_t own_channels(const Plan& plan) {
  return largest_part(plan.model.hidden_size, parts(plan).channels);
}

// Tokens of a sequence that a rank has.
std::int64_t own_length(const Plan& plan) {
  const std::int64_t ranks = plan.config.parallel.context.size;
  return (plan.sequence_length + ranks - 1) / ranks;
}

// Channels of keys, or of values: fewer than of queries where heads share them.
std::int64_t key_channels(const Plan& plan) {
  if (plan.model.num_heads <= 0) return plan.model.hidden_size;
  return plan.model.hidden_size / plan.model.num_heads * plan.model.num_kv_heads;
}

bool in_a_ring(const Plan& plan) {
  const ContextOptions& context = plan.config.parallel.context;
  return context.size > 1 && context.mode == nn::ContextMode::Ring;
}

// Tokens that a rank has between the layers that share their weights.
std::int64_t own_tokens(const Plan& plan, std::int64_t tokens) {
  return plan.config.parallel.sequence ? share(plan, tokens) : own_samples(plan, tokens);
}

std::int64_t mlp_channels(const Plan& plan) {
  const json::Value* given = plan.model.description.find("ffn_hidden_size");
  return given != nullptr && given->is_number() ? given->as_integer().value_or(0)
                                                : 4 * plan.model.hidden_size;
}

// Blocks of the model without the first and the last that keep only their input.
std::int64_t layers_run_twice(const Plan& plan) {
  const auto& blocks = plan.recompute.blocks;
  if (blocks.size() < 3) return 0;
  return std::count(blocks.begin() + 1, blocks.end() - 1, true);
}

bool on_grid(const Plan& plan) {
  return plan.weight_layout.tensor != nn::TensorMode::OneD;
}

// What a layer makes, in values: its input and the residual between its halves, two norms, the
// fused projection, attention before and after the heads are merged, and the MLP before and after
// its nonlinearity. Of the first two a rank has its tokens, of the norms all tokens, of the rest
// its heads and features.
std::int64_t layer_values(const Plan& plan, std::int64_t tokens) {
  const std::int64_t C = plan.model.hidden_size, F = mlp_channels(plan);
  return own_tokens(plan, tokens) * 2 * own_channels(plan) +
         own_samples(plan, tokens) *
             (2 * own_channels(plan) + share(plan, 3 * C + 2 * key_channels(plan) + 2 * F));
}

// Those that backward makes again instead of keeping them: behind the nonlinearity, and norms where
// no rank gathers them.
std::int64_t values_made_again(const Plan& plan, std::int64_t tokens) {
  if (on_grid(plan)) return 0;
  const std::int64_t norms = plan.config.parallel.sequence ? 0 : 2 * own_channels(plan);
  return own_samples(plan, tokens) * (norms + share(plan, mlp_channels(plan)));
}

// The logarithm of each row's sum, whatever the masks and dropout: no probabilities are kept.
std::int64_t attention_bytes(const Plan& plan, std::int64_t batch) {
  return own_samples(plan, batch) * share(plan, plan.model.num_heads) * own_length(plan) * 4;
}

// What attention needs on top while ranks that share the tokens exchange them: keys and values
// here, on their way and coming, and so their gradients in fp32 beside that of the queries.
// Ulysses: queries, keys and values before, packed and after.
std::int64_t exchange_room(const Plan& plan, std::int64_t batch) {
  if (plan.config.parallel.context.size == 1) return 0;
  const auto value = static_cast<std::int64_t>(size_of(plan.working));
  const std::int64_t length = own_length(plan), samples = own_samples(plan, batch);
  const std::int64_t values = samples * length * share(plan, plan.model.hidden_size),
                     keys = samples * length * share(plan, key_channels(plan));
  if (!in_a_ring(plan)) return 3 * (values + 2 * keys) * value;
  return keys * 3 * 2 * (value + 4) + values * 4;
}

// Rows of logits that exist at a time; on a grid all of a rank's.
std::int64_t logits_rows(const Plan& plan,
                         std::int64_t tokens,
                         std::int64_t vocab,
                         bool want_grad) {
  if (on_grid(plan)) return own_samples(plan, tokens);
  return ops::logits_rows_at_once(to_torch(plan.working), tokens, vocab, want_grad);
}

// Logits and their gradient. In fp32 they become it in place, in 16 bits it is a narrow one beside
// them; both of some samples at a time.
std::int64_t training_logits(const Plan& plan) {
  const std::int64_t length = own_length(plan), V = share(plan, plan.model.vocab_size);
  const std::int64_t samples = on_grid(plan)
                                   ? plan.micro_batch
                                   : std::min(plan.micro_batch, ops::samples_of_logits(length, V));
  const std::int64_t tokens = samples * length,
                     rows = logits_rows(plan, tokens, V, /*want_grad=*/true);
  const auto value = static_cast<std::int64_t>(size_of(plan.working));
  return V * (rows * 4 + (value == 4 ? 0 : own_samples(plan, tokens) * value));
}

}  // namespace

std::int64_t training_activations(const Plan& plan) {
  const std::int64_t tokens = plan.micro_batch * own_length(plan);
  const auto value = static_cast<std::int64_t>(size_of(plan.working));
  const std::int64_t attention = attention_bytes(plan, plan.micro_batch);
  const std::int64_t layer = layer_values(plan, tokens) * value + attention;
  const std::int64_t kept =
      layer - values_made_again(plan, tokens) * value - (plan.recompute.regions ? attention : 0);
  const std::int64_t twice = layers_run_twice(plan),
                     input = own_tokens(plan, tokens) * own_channels(plan) * value;
  // Backward works through one layer at a time, with gradients about as large as what that layer
  // made.
  return (plan.model.num_layers - twice) * kept + twice * input + (twice > 0 ? layer : 0) +
         std::max(training_logits(plan), layer + exchange_room(plan, plan.micro_batch)) + 4 * input;
}

std::int64_t evaluation_activations(const Plan& plan) {
  if (!plan.config.eval.when().any() && plan.config.data.test.empty()) return 0;
  const std::int64_t batch = plan.config.eval.micro_batch, tokens = batch * own_length(plan);
  const auto value = static_cast<std::int64_t>(size_of(plan.working));
  const std::int64_t V = share(plan, plan.model.vocab_size);
  const std::int64_t rows = logits_rows(plan, tokens, V, /*want_grad=*/false);
  return rows * V * 4 + layer_values(plan, tokens) * value + attention_bytes(plan, batch) +
         exchange_room(plan, batch);
}

}  // namespace tessera::planner
