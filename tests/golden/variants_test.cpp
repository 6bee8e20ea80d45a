// SPDX-License-Identifier: Apache-2.0
// Variants of models that the recorded folders do not have, against transformers
// (variants_reference.py): scalings of rotary positions in families that do not rotate all of
// a head's channels or have two kinds of layers; encoders with an output matrix of their own.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "golden/golden.h"
#include "support/model_runner.h"
#include "support/source_dir.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/interop/weights_of.h"
#include "tessera/models/family.h"
#include "tessera/models/hf_objective.h"

namespace tessera {
namespace {

// transformers computes sines in fp32; its own fp32 run is within a fifth of the bound.
constexpr double kLogits = 5e-5;

at::Tensor weights(const std::string& name, const std::vector<std::int64_t>& shape, double number) {
  std::int64_t count = 1;
  for (const std::int64_t dim : shape)
    count *= dim;
  const at::Tensor f = 1e4 * at::sin(13.0 * at::arange(count, at::kDouble) + 7.0 * number + 1.0);
  const at::Tensor out = 1.6 * (f - f.floor() - 0.5) + (name.ends_with("norm.weight") ? 1.0 : 0.0);
  return out.to(at::kFloat).view(shape).contiguous();
}

std::vector<checkpoint::StreamedTensor> tensors_of(const json::Value& shapes) {
  std::vector<checkpoint::StreamedTensor> out;
  for (const auto& [name, list] : shapes.members()) {
    std::vector<std::int64_t> shape;
    for (const json::Value& dim : list.items())
      shape.push_back(*dim.as_integer());
    const at::Tensor held = weights(name, shape, static_cast<double>(out.size()));
    out.push_back({.name = name,
                   .dtype = DType::F32,
                   .shape = shape,
                   .read = [held](std::int64_t begin, std::int64_t end, std::byte* to) {
                     std::memcpy(to,
                                 held.data_ptr<float>() + begin,
                                 static_cast<std::size_t>(end - begin) * sizeof(float));
                   }});
  }
  return out;
}

models::Resolved resolved(const json::Value& config) {
  const models::ModelOptions options = models::options_from_hf(config);
  config::Problems problems;
  models::Resolved out = models::resolve(options,
                                         options->vocab_size.value_or(1),
                                         std::nullopt,
                                         problems,
                                         config::Origins(),
                                         models::objective_of_hf(config));
  problems.raise();
  return out;
}

models::ModelOptions read_back(const models::Resolved& model) {
  models::ModelOptions out;
  config::Problems problems;
  config::Origins origins;
  config::read(model.description, out, problems, origins);
  problems.raise();
  return out;
}

TEST(GoldenVariants, GiveTheLogitsOfTransformers) {
  const json::Value record =
      golden::read_json(test::source_dir() / "tests" / "golden" / "variants_logits.json");
  std::vector<at::Tensor> seen;
  for (const json::Value& one : golden::at(record, "cases").items()) {
    SCOPED_TRACE(golden::at(one, "name").as_string());
    std::vector<std::int64_t> ids;
    for (const json::Value& id : golden::at(one, "ids").items())
      ids.push_back(*id.as_integer());
    json::Value config = golden::at(one, "config");
    const std::string text = config.dump();
    if (text.find("longrope") != std::string::npos || text.find("dynamic") != std::string::npos)
      config["rope_length"] = json::Value::integer(static_cast<std::int64_t>(ids.size()));
    const std::string family = golden::at(config, "model_type").as_string();
    const models::Resolved model = resolved(config);
    const auto tensors = tensors_of(golden::at(golden::at(record, "tensors"), family.c_str()));
    const models::WeightSource source =
        interop::weights_of(tensors, models::families().get(family), model, "the rule");
    test::ModelRunner runner(model.model, DType::F32);
    runner.fill([&](const ParamInfo& info, const at::Tensor& out) {
      source(info, 0, info.numel(), out.data_ptr<float>());
    });
    nn::StepContext context(nn::Mode::Eval, 1);
    context.want_logits = true;

    const at::Tensor logits =
        runner.infer(test::make_batch(at::tensor(ids, at::kLong).unsqueeze(0)), context)
            .outputs.at("logits");

    const auto& rows = golden::at(one, "logits").items();
    const auto count = static_cast<std::int64_t>(rows.size());
    at::Tensor expected = at::empty({count, logits.size(2)}, at::kDouble);
    for (std::int64_t row = 0; row < count; ++row) {
      const auto numbers = golden::numbers(rows[static_cast<std::size_t>(row)]);
      for (std::int64_t i = 0; i < logits.size(2); ++i)
        expected[row][i] = numbers[static_cast<std::size_t>(i)];
    }
    const at::Tensor last = logits[0].narrow(0, logits.size(1) - count, count);
    EXPECT_LT((last.to(at::kDouble) - expected).abs().max().item<double>(), kLogits);
    for (const at::Tensor& other : seen)
      EXPECT_GT((other - expected).abs().max().item<double>(), 20 * kLogits)
          << "the case does not differ from another one";
    seen.push_back(expected);

    const json::Value written = models::families().get(family).to_hf(*read_back(model));
    EXPECT_EQ(resolved(written).description.dump(), model.description.dump());
  }
  EXPECT_GE(seen.size(), 25U);
}

}  // namespace
}  // namespace tessera
