// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/onnx_of.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/interop/onnx/model.h"
#include "tessera/models/objective.h"
#include "tessera/nn/block.h"
#include "tessera/nn/step_context.h"
#include "tessera/ops/op_trace.h"
#include "tessera/parallel/model_instance.h"

namespace tessera::engine {
namespace {

constexpr const char* kFix = "convert to a Hugging Face folder";

// The lengths are short, so that models of few positions can be traced too.
const interop::OnnxAxis kSamples = {"batch_size", 2, 3, 5};
const interop::OnnxAxis kTokens = {"sequence_length", 5, 7, 11};
const interop::OnnxAxis kEncoderTokens = {"encoder_sequence_length", 5, 7, 11};
const interop::OnnxAxis kDecoderTokens = {"decoder_sequence_length", 8, 6, 9};

/// Token ids that differ between the runs.
at::Tensor ids_of(std::int64_t samples, std::int64_t tokens, std::int64_t vocabulary, int run) {
  const at::Tensor ids = at::empty({samples, tokens}, at::kLong);
  auto* const id = ids.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < samples * tokens; ++i)
    id[i] = (i * i + 5 * i + 3 + 7 * run) % vocabulary;
  return ids;
}

/// 1 for tokens, and 0 for up to two padding tokens at the end of each sample.
at::Tensor mask_of(std::int64_t samples, std::int64_t tokens, int run) {
  const at::Tensor mask = at::ones({samples, tokens}, at::kLong);
  for (std::int64_t s = 0; s < samples; ++s) {
    const std::int64_t padding = (s + run) % 3;
    if (padding > 0) mask[s].narrow(0, tokens - padding, padding).zero_();
  }
  return mask;
}

std::int64_t number_of(const json::Value& description, const char* key) {
  const json::Value* const value = description.find(key);
  const auto number = value == nullptr ? std::nullopt : value->as_integer();
  TESSERA_REQUIRE(number.has_value(),
                  Unsupported,
                  fmt::format("not built: an ONNX file of a model of images without {}", key),
                  kFix);
  return *number;
}

/// The axes of a model's inputs, and the inputs of a run with the given sizes.
class Inputs {
 public:
  explicit Inputs(const models::Resolved& shape) : shape_(shape) {
    const models::TrunkOutput& trunk = shape.trunk.output;
    axes_ = {kSamples};
    if (trunk.modality == models::Modality::Images) return;
    axes_.push_back(trunk.target ? kEncoderTokens : kTokens);
    if (trunk.target) axes_.push_back(kDecoderTokens);
    const std::int64_t most = kTokens.check;
    TESSERA_REQUIRE(shape.max_positions == 0 || shape.max_positions >= most,
                    Unsupported,
                    fmt::format("not built: an ONNX file of a model of {} positions, fewer than {}",
                                shape.max_positions,
                                most),
                    kFix);
  }

  [[nodiscard]] const std::vector<interop::OnnxAxis>& axes() const { return axes_; }

  [[nodiscard]] std::vector<std::pair<std::string, at::Tensor>> of(
      const std::vector<std::int64_t>& sizes, int run) const {
    const std::int64_t samples = sizes[0];
    if (shape_.trunk.output.modality == models::Modality::Images) {
      const std::int64_t side = number_of(shape_.description, "image_size"),
                         channels = number_of(shape_.description, "num_channels");
      const at::Tensor pixels =
          at::arange(samples * channels * side * side, at::kFloat).add_(run).mul_(0.37F).sin_();
      return {{"pixel_values", pixels.view({samples, channels, side, side})}};
    }
    const std::int64_t tokens = sizes[1];
    std::vector<std::pair<std::string, at::Tensor>> out = {
        {"input_ids", ids_of(samples, tokens, shape_.vocab_size, run)},
        {"attention_mask", mask_of(samples, tokens, run)}};
    if (shape_.trunk.output.target) {
      out.emplace_back("decoder_input_ids", ids_of(samples, sizes[2], shape_.vocab_size, run + 1));
    } else if (has_types()) {
      out.emplace_back("token_type_ids", at::zeros({samples, tokens}, at::kLong));
    }
    return out;
  }

 private:
  /// True if a model may distinguish the texts of a pair; where it reads no types, the graph leaves
  /// them out.
  [[nodiscard]] bool has_types() const {
    const json::Value* const types = shape_.description.find("type_vocab_size");
    return types != nullptr && types->as_integer().value_or(1) > 1;
  }

  const models::Resolved& shape_;
  std::vector<interop::OnnxAxis> axes_;
};

/// The sizes of run number `run`, of which the last has the check values.
std::vector<std::int64_t> sizes_of_run(const std::vector<interop::OnnxAxis>& axes,
                                       std::size_t run) {
  std::vector<std::int64_t> out;
  for (std::size_t a = 0; a < axes.size(); ++a) {
    const bool last = run == std::size_t{1} << axes.size();
    out.push_back(last ? axes[a].check : (run >> a & 1) != 0 ? axes[a].high : axes[a].low);
  }
  return out;
}

/// The name of the objective's output, and in the file.
std::pair<std::string, std::string> output_of(const nn::Outcome& outcome,
                                              const std::string& objective) {
  for (const auto& [ours, theirs] :
       {std::pair("logits", "logits"), std::pair("embedding", "sentence_embedding")}) {
    if (outcome.outputs.contains(ours)) return {ours, theirs};
  }
  throw Error(Error::Kind::Unsupported,
              fmt::format("not built: an ONNX file of a model with the objective {}", objective),
              kFix);
}

}  // namespace

interop::OnnxGraph onnx_of(const models::Resolved& shape, parallel::Executor& executor) {
  TESSERA_REQUIRE(
      models::traits_of(shape.objective.name).predicts != models::Predicts::NextTokenOfPrefix,
      Unsupported,
      "not built: an ONNX file of a model that sees a prefix of its text as a whole",
      kFix);
  const Inputs inputs(shape);
  interop::OnnxTraced traced{.axes = inputs.axes()};
  const parallel::ModelInstance& model = executor.model();
  for (int block = 0; block < model.num_blocks(); ++block) {
    for (const auto& param : model.params(block))
      traced.parameters.emplace_back(param->info().name, param->tensor());
  }
  const std::size_t runs = (std::size_t{1} << inputs.axes().size()) + 1;
  std::vector<std::unique_ptr<ops::OpTrace>> traces;
  for (std::size_t run = 0; run < runs; ++run) {
    const std::vector<std::int64_t> sizes = sizes_of_run(inputs.axes(), run);
    nn::Batch batch;
    for (std::int64_t sample = 0; sample < sizes[0]; ++sample)
      batch.sample_ids.push_back(sample);
    interop::OnnxRun one;
    for (const auto& [name, tensor] : inputs.of(sizes, static_cast<int>(run))) {
      batch.set(name, tensor);
      one.inputs.push_back(tensor);
      if (run == 0) traced.inputs.push_back(name);
    }
    nn::StepContext context(nn::Mode::Eval, /*seed=*/0);
    context.want_logits = true;
    traces.push_back(std::make_unique<ops::OpTrace>());
    const nn::Outcome outcome = executor.infer(batch, context);
    const auto [ours, theirs] = output_of(outcome, shape.objective.name);
    one.output = traces.back()->value_of(outcome.outputs.at(ours));
    traces.back()->stop();
    one.trace = traces.back().get();
    traced.output = theirs;
    traced.runs.push_back(std::move(one));
  }
  return interop::onnx_graph(traced);
}

}  // namespace tessera::engine
