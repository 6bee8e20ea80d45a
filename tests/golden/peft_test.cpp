// SPDX-License-Identifier: Apache-2.0
// labels: slow
// Adapters against the answers that PEFT gave in float64: logits, loss, the gradient of everything
// that is trained, three AdamW steps, and the merged model.
#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "golden/golden.h"
#include "golden/hf_models.h"
#include "support/model_runner.h"
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/checkpoint/safetensors.h"
#include "tessera/interop/peft/folder.h"
#include "tessera/interop/weights_of.h"
#include "tessera/models/adapter.h"
#include "tessera/models/family.h"
#include "tessera/models/hf_objective.h"
#include "tessera/parallel/tensor_rules.h"
#include "tessera/tensor/dtype.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using test::ModelRunner;
using Named = std::map<std::string, at::Tensor>;

// How much a float32 program may differ, absolute: see tests/golden/README.md.
constexpr double kLogits = 5e-5, kGradients = 5e-5, kLoss = 1e-5, kAfterAdamW = 5e-5,
                 kMerged = 1e-5;

Named tensors_in(const fs::path& path) {
  const checkpoint::SafetensorsFile file(path);
  Named out;
  for (const auto& entry : file.entries()) {
    void* bytes = const_cast<std::byte*>(file.bytes(entry).data());
    out[entry.name] =
        at::from_blob(bytes, entry.shape, at::TensorOptions(to_torch(entry.dtype))).clone();
  }
  return out;
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

/// An adapter and its base.
struct Adapted {
  fs::path folder;
  interop::PeftFolder peft;
  const models::Family& family;
  models::Resolved base;
  models::Adapter adapter;
  models::WeightSource base_weights, adapter_weights;
  Named expected, inputs;
  json::Value record;
};

Adapted open_adapted(const fs::path& folder) {
  interop::PeftFolder peft = interop::open_peft(folder);
  const fs::path base = interop::base_of(peft);
  const json::Value config = golden::read_json(base / "config.json");
  const models::Family& family = models::families().get(models::family_of_hf(config));
  models::Resolved resolved = golden::resolved_from_hf(config);
  models::Adapter adapter = models::find_adapter(peft.options, resolved, family.weight_map);
  models::WeightSource weights = interop::weights_from_hf(base, family, resolved),
                       trained = interop::peft_weights(peft, adapter, family.weight_map);
  return {folder,
          std::move(peft),
          family,
          std::move(resolved),
          std::move(adapter),
          std::move(weights),
          std::move(trained),
          tensors_in(folder / "expected.safetensors"),
          tensors_in(base / "inputs.safetensors"),
          golden::read_json(folder / "case.json")};
}

ModelRunner run(const Adapted& one, comm::World* world) {
  const nn::Model model = models::adapted(one.base.model, one.adapter);
  ModelRunner out(model, DType::F32, world, golden::even_stages(world, model));
  out.fill([&](const ParamInfo& info, const at::Tensor& to) {
    const auto& source = one.adapter.trains(info.name) ? one.adapter_weights : one.base_weights;
    source(info, 0, info.numel(), to.data_ptr<float>());
  });
  return out;
}

nn::Batch batch_of(const Adapted& one) {
  nn::Batch batch;
  const at::Tensor labels = one.inputs.at("labels");
  for (std::int64_t sample = 0; sample < labels.size(0); ++sample)
    batch.sample_ids.push_back(sample);
  for (const auto& [name, tensor] : one.inputs) {
    const bool padding = name == "attention_mask" && tensor.eq(0).any().item<bool>();
    if (name != "labels" && (name != "attention_mask" || padding)) batch.set(name, tensor);
  }
  if (labels.dim() == 1) {
    batch.set("label", labels);
  } else {
    // Theirs are not shifted: label t belongs to token t.
    at::Tensor shifted = at::full_like(labels, -100);
    shifted.narrow(1, 0, labels.size(1) - 1).copy_(labels.narrow(1, 1, labels.size(1) - 1));
    batch.set("labels", shifted);
  }
  return batch;
}

template <class Check>
void for_each_case(const Check& check) {
  int count = 0;
  for (const fs::path& folder : golden::cases("peft")) {
    if (!interop::is_peft(folder)) continue;  // a base
    SCOPED_TRACE(folder.filename().string());
    check(open_adapted(folder));
    ++count;
  }
  EXPECT_GT(count, 0) << "no adapter in " << golden::folder() / "peft";
}

at::Tensor of_tokens(const Adapted& one, const at::Tensor& logits) {
  if (logits.dim() < 3) return logits;
  return logits.masked_fill(one.inputs.at("attention_mask").eq(0).unsqueeze(-1), 0.0);
}

/// The recorded tensors with a prefix in our layout: the folder's reader, on them.
models::WeightSource recorded_with(const Adapted& one, const std::string& prefix, Named& held) {
  interop::PeftFolder recorded = one.peft;
  for (interop::Weight& weight : recorded.tensors) {
    const auto found = one.expected.find(prefix + weight.name);
    if (found == one.expected.end()) continue;  // a base weight that PEFT saves too
    held[prefix + weight.name] = found->second.contiguous();
    weight.data = static_cast<const std::byte*>(held[prefix + weight.name].data_ptr());
    weight.map = nullptr;
  }
  return interop::peft_weights(recorded, one.adapter, one.family.weight_map);
}

/// Compares this rank's part of the recorded tensors with a prefix with `ours`; returns how many
/// parameters it compared. Elements whose gradient is noise are left out: Adam divides a gradient
/// by its own size.
int expect_trained(const Adapted& one,
                   ModelRunner& runner,
                   const std::string& prefix,
                   const std::function<at::Tensor(const std::string& name)>& ours,
                   double bound) {
  constexpr double kNoise = 1e-7;
  Named held;
  const models::WeightSource source = recorded_with(one, prefix, held),
                             gradients = recorded_with(one, "grad.", held);
  int compared = 0;
  for (const auto& [name, info] : runner.infos) {
    if (!one.adapter.trains(name)) continue;
    at::Tensor whole = at::empty(info->shape), gradient = at::empty(info->shape);
    source(*info, 0, info->numel(), whole.data_ptr<float>());
    gradients(*info, 0, info->numel(), gradient.data_ptr<float>());
    at::Tensor here = ours(name), there = ModelRunner::held(*info, whole);
    if (prefix == "after.") {
      const at::Tensor size = ModelRunner::held(*info, gradient).abs(),
                       noise = size.lt(kNoise).logical_and(size.gt(0));
      EXPECT_LE(noise.sum().item<double>(), 0.5 * static_cast<double>(noise.numel())) << name;
      there = at::where(noise, here, there);
    }
    EXPECT_LT(difference(here, there), bound) << prefix << name;
    ++compared;
  }
  return compared;
}

/// Everything that is recorded, on the ranks of `world`.
void expect_recorded(const Adapted& one, comm::World* world) {
  ModelRunner runner = run(one, world);
  const nn::Batch batch = batch_of(one);
  nn::StepContext context(nn::Mode::Eval, 1);
  context.want_logits = true;
  const nn::Outcome out = runner.infer(batch, context);
  if (out.outputs.contains("logits")) {
    EXPECT_LT(difference(of_tokens(one, out.outputs.at("logits")),
                         of_tokens(one, one.expected.at("logits"))),
              kLogits);
  }
  EXPECT_NEAR(runner.train(batch), one.expected.at("loss").item<double>(), kLoss);
  for (const auto& [name, info] : runner.infos)
    EXPECT_EQ(info->trainable, one.adapter.trains(name)) << name;
  expect_trained(
      one,
      runner,
      "grad.",
      [&](const std::string& name) { return runner.grads.at(name); },
      kGradients);

  const json::Value& adamw = golden::at(one.record, "adamw");
  const auto number = [&](const char* key) { return golden::at(adamw, key).as_double(); };
  const auto betas = golden::numbers(golden::at(adamw, "betas")),
             losses = golden::numbers(golden::at(adamw, "losses"));
  for (std::int64_t step = 1; step < std::ssize(losses); ++step) {
    EXPECT_NEAR(runner.train(batch), losses.at(static_cast<std::size_t>(step - 1)), kLoss)
        << "before step " << step;
    runner.update({.lr = number("lr"),
                   .beta1 = betas.at(0),
                   .beta2 = betas.at(1),
                   .eps = number("eps"),
                   .weight_decay = number("weight_decay"),
                   .step = step});
  }
  EXPECT_NEAR(runner.train(batch), losses.back(), kLoss) << "after the last step";
  const int compared = expect_trained(
      one,
      runner,
      "after.",
      [&](const std::string& name) {
        return ModelRunner::held(*runner.infos.at(name), runner.weights.at(name));
      },
      kAfterAdamW);
  if (world == nullptr) {
    EXPECT_EQ(compared, std::ssize(one.adapter.parameters));
  }
}

TEST(GoldenPeft, GivesLogitsLossGradientsAndSteps) {
  for_each_case([](const Adapted& one) { expect_recorded(one, nullptr); });
}

TEST(GoldenPeft, TrainsAsManyNumbers) {
  for_each_case([](const Adapted& one) {
    std::int64_t trained = 0;
    for (const auto& [name, info] : one.adapter.parameters)
      trained += info->numel();
    const json::Value* const recorded = one.record.find("trainable_parameters");
    std::int64_t expected = recorded == nullptr ? 0 : *recorded->as_integer();
    if (recorded == nullptr) {  // newer records list the tensors
      for (const auto& [name, shape] : golden::at(one.record, "adapter_tensors").members()) {
        std::int64_t numel = 1;
        for (const json::Value& size : shape.items())
          numel *= *size.as_integer();
        expected += numel;
      }
    }
    EXPECT_EQ(trained, expected);
  });
}

TEST(GoldenPeft, GivesTheSameOnTwoTensorParallelRanks) {
  comm::run_threads(mesh::Mesh({.tp_col = 2}), [](comm::World& world) {
    for_each_case([&](const Adapted& one) {
      // Adapters of a head of keys and values that ranks share are refused.
      if (parallel::ranks_that_share_a_head(one.base.model, 2) == 1) expect_recorded(one, &world);
    });
  });
}

TEST(GoldenPeft, GivesTheSameOnTwoStages) {
  comm::run_threads(mesh::Mesh({.pp = 2}), [](comm::World& world) {
    for_each_case([&](const Adapted& one) { expect_recorded(one, &world); });
  });
}

TEST(GoldenPeft, MergesIntoTheWeights) {
  for_each_case([](const Adapted& one) {
    const models::WeightSource merged =
        models::merged_weights(one.adapter, one.base_weights, one.adapter_weights);
    models::Parameters parameters = nn::parameters_of(one.base.model);
    std::size_t compared = 0;
    for (const models::TheirTensor& theirs :
         models::their_tensors(one.family.weight_map, parameters)) {
      const auto expected = one.expected.find("merged." + theirs.name);
      at::Tensor ours = at::zeros(theirs.shape), base = at::zeros(theirs.shape);
      for (const models::TheirTensor::Part& part : theirs.parts) {
        const auto from = [&](const models::WeightSource& source) {
          return [&, source](std::int64_t begin, std::int64_t end, float* out) {
            source(*part.info, begin, end, out);
          };
        };
        copy_range(part.copy, 0, ours.numel(), from(merged), ours.data_ptr<float>());
        copy_range(part.copy, 0, base.numel(), from(one.base_weights), base.data_ptr<float>());
      }
      if (expected == one.expected.end()) {
        EXPECT_TRUE(ours.equal(base)) << theirs.name;
        continue;
      }
      EXPECT_LT(difference(ours, expected->second), kMerged) << theirs.name;
      ++compared;
    }
    EXPECT_EQ(std::ssize(golden::at(one.record, "merged_tensors").items()),
              static_cast<std::ptrdiff_t>(compared));
  });
}

TEST(GoldenPeft, WritesFoldersThatReadTheSame) {
  for_each_case([](const Adapted& one) {
    const fs::path folder =
        fs::temp_directory_path() / ("tessera_peft_" + one.folder.filename().string());
    fs::create_directories(folder);
    interop::write_peft(
        folder,
        interop::peft_config(one.adapter, one.peft.base, one.base.objective.name),
        interop::peft_tensors(one.adapter, one.family.weight_map, one.adapter_weights));
    const interop::PeftFolder again = interop::open_peft(folder);
    const models::Adapter adapter =
        models::find_adapter(again.options, one.base, one.family.weight_map);
    const Named theirs = tensors_in(one.folder / "adapter_model.safetensors"),
                ours = tensors_in(folder / "adapter_model.safetensors");
    for (const auto& [name, tensor] : theirs) {
      if (name.ends_with(".base_layer.weight")) continue;
      ASSERT_TRUE(ours.contains(name)) << name;
      EXPECT_TRUE(ours.at(name).equal(tensor)) << name;
    }
    EXPECT_EQ(adapter.modules.size(), one.adapter.modules.size());
    for (std::size_t m = 0; m < adapter.modules.size(); ++m) {
      EXPECT_EQ(adapter.modules[m].part.module, one.adapter.modules[m].part.module);
      EXPECT_DOUBLE_EQ(adapter.modules[m].part.scale, one.adapter.modules[m].part.scale);
    }
    EXPECT_NO_THROW((void)interop::peft_weights(again, adapter, one.family.weight_map));
    fs::remove_all(folder);
  });
}

}  // namespace
}  // namespace tessera
