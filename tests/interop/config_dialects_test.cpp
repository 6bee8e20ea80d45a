// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/config_dialects.h"

#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/interop/colossal/python_literal.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"

namespace tessera::interop {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

json::Value json_of(const std::string& text) {
  return json::parse(text, "c.json");
}

constexpr const char* kTutorial = R"({"NUM_EPOCHS": 60, "SEQ_LEN": 1024, "BATCH_SIZE": 192,
  "NUM_MICRO_BATCHES": 48, "clip_grad_norm": 1.0, "TENSOR_SHAPE": [4, 1024, 1600], "NUM_CHUNKS": 2,
  "parallel": {"pipeline": 2, "tensor": {"mode": "1d", "size": 2}},
  "fp16": {"mode": "AMP_TYPE.NAIVE", "initial_scale": 65536, "growth_interval": 1000,
           "growth_factor": 2, "max_scale": 1048576}, "cudnn_benchmark": true})";

TEST(Dialects, AreRecognizedByKeysThatNoOtherProgramHas) {
  EXPECT_EQ(dialect_of(json_of(kTutorial)), Dialect::ColossalAi);
  EXPECT_EQ(dialect_of(json_of(R"({"fp16": {"mode": "NAIVE"}, "parallel": {"pipeline": 2}})")),
            Dialect::ColossalAi);
  EXPECT_EQ(dialect_of(json_of(R"({"train_batch_size": 4, "zero_optimization": {}})")),
            Dialect::DeepSpeed);
  EXPECT_EQ(dialect_of(json_of(R"({"train_batch_size": 4, "data": {"train": "a"}})")),
            Dialect::Tessera);
  EXPECT_THROW(dialect_named("megatron"), Error);
  EXPECT_THROW(dialect_of(json_of("[1]")), Error);
}

TEST(ColossalToOurs, KeepsWhatMeansTheSame) {
  const Converted out = convert_config(json_of(kTutorial), Dialect::Tessera);

  EXPECT_EQ(out.value, json_of(R"({"trainer": {"epochs": 60}, "data": {"sequence_length": 1024},
    "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 48,
    "gradient_clipping": 1.0,
    "parallel": {"pipeline": {"size": 2, "chunks": 2}, "tensor": {"mode": "1d", "size": 2}},
    "fp16": {"enabled": true, "scaler": "megatron", "initial_scale": 65536,
             "growth_interval": 1000, "growth_factor": 2, "max_scale": 1048576}})"));
  EXPECT_THAT(out.notes,
              ElementsAre(HasSubstr("TENSOR_SHAPE"), HasSubstr("cudnn_benchmark = true")));
}

TEST(ColossalToOurs, ZeroIsStageThreeIn16Bits) {
  const Converted out = convert_config(json_of(R"({"BATCH_SIZE": 8, "gradient_accumulation": 4,
      "zero": {"model_config": {"tensor_placement_policy": "cpu", "reduce_scatter_bucket_size_mb": 25,
      "reuse_fp16_shard": true}, "optimizer_config": {"initial_scale": 32}}})"),
                                       Dialect::Tessera);

  EXPECT_EQ(out.value, json_of(R"({"train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 4, "fp16": {"enabled": true, "scaler": "megatron", "initial_scale": 32},
    "zero_optimization": {"stage": 3, "reduce_bucket_size": 13107200,
      "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}})"));
  EXPECT_THAT(out.notes, ElementsAre(HasSubstr("zero.model_config.reuse_fp16_shard")));
}

struct PlacementRow {
  const char* keys;
  const char* zero;  ///< the members of zero_optimization
  const char* note;  ///< nullptr: none
};

TEST(ColossalToOurs, PlacesParametersAndStatesAsGeminiAndItsOptimizersDo) {
  for (const auto& [keys, zero, note] : {
           PlacementRow{R"("zero": {"model_config": {"tensor_placement_policy": "cuda"}})",
                        R"({"stage": 3})",
                        nullptr},
           PlacementRow{R"("zero": {"model_config": {"tensor_placement_policy": "auto"}})",
                        R"({"stage": 3})",
                        "\"auto\": ranks compute on the CPU"},
           PlacementRow{R"("zero": {}, "gemini": {"placement_policy": "static",
                           "offload_optim_frac": 1.0, "offload_param_frac": 0.0})",
                        R"({"stage": 3, "offload_optimizer": {"device": "cpu"}})",
                        nullptr},
           PlacementRow{R"("zero": {}, "gemini": {"placement_policy": "static",
                           "offload_optim_frac": 0.5, "offload_param_frac": 0.5,
                           "shard_param_frac": 0.5})",
                        R"({"stage": 3, "offload_param": {"device": "cpu"},
                            "offload_optimizer": {"device": "cpu"}})",
                        "shard_param_frac has no effect"},
           PlacementRow{R"("zero": {}, "gemini": {"placement_policy": "gpu"})",
                        R"({"stage": 3})",
                        "is not a placement"},
           PlacementRow{R"("optimizer": {"type": "HybridAdam", "nvme_offload_fraction": 1.0,
                           "nvme_offload_dir": "/mnt/a"})",
                        R"({"stage": 3, "offload_optimizer": {"device": "nvme",
                            "nvme_path": "/mnt/a"}})",
                        nullptr},
           PlacementRow{R"("zero": {"model_config": {"tensor_placement_policy": "cpu"},
                           "optimizer_config": {"nvme_offload_fraction": 0.5,
                                                "nvme_offload_dir": "/mnt/a"}})",
                        R"({"stage": 3, "offload_param": {"device": "cpu"},
                            "offload_optimizer": {"device": "nvme", "nvme_path": "/mnt/a",
                                                  "ratio": 0.5}})",
                        nullptr},
           PlacementRow{R"("optimizer": {"type": "CPUAdam", "nvme_offload_fraction": 0.0,
                           "nvme_offload_dir": "/mnt/a"})",
                        "null",
                        "nvme_offload_dir has no effect"},
       }) {
    SCOPED_TRACE(keys);
    const Converted out = convert_config(json_of(std::string(R"({"BATCH_SIZE": 8, )") + keys + "}"),
                                         Dialect::Tessera);
    const json::Value* const found = out.value.find("zero_optimization");
    EXPECT_EQ(found == nullptr ? json::Value() : *found, json_of(zero));
    if (note == nullptr) {
      EXPECT_THAT(out.notes, testing::IsEmpty());
    } else {
      EXPECT_THAT(out.notes, ElementsAre(HasSubstr(note)));
    }
  }
}

TEST(ColossalToOurs, NamesAShardStrategyAsWithoutACounterpart) {
  const json::Value python = parse_python(
      "from colossalai.zero.shard_utils import TensorShardStrategy\nBATCH_SIZE = 8\n"
      "zero = dict(model_config=dict(shard_strategy=TensorShardStrategy()))\n",
      "config.py");

  const Converted out = convert_config(python, Dialect::Tessera);

  EXPECT_EQ(out.value.find("zero_optimization")->find("stage")->as_integer(), 3);
  EXPECT_THAT(out.notes,
              ElementsAre("zero.model_config.shard_strategy = \"TensorShardStrategy()\" has no "
                          "counterpart in tessera"));
}

// A file with one key of Colossal-AI's, which `train` reads too, keeps its other keys.
TEST(ColossalToOurs, KeepsKeysOfTesseraAndDeepSpeed) {
  for (const char* key : {R"("fp16": {"mode": "AMP_TYPE.NAIVE", "hysteresis": 3})",
                          R"("NUM_CHUNKS": 2, "fp16": {"enabled": true, "hysteresis": 3})",
                          R"("TENSOR_SHAPE": [1], "fp16": {"enabled": true, "hysteresis": 3})"}) {
    const json::Value mixed = json_of(std::string("{") + key + R"(, "train_batch_size": 8,
      "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}, "gradient_clipping": 1.0,
      "zero_optimization": {"stage": 1, "overlap_comm": true}, "model": {"hidden_size": 16}})");

    const Converted deepspeed = convert_config(mixed, Dialect::DeepSpeed);
    const Converted ours = convert_config(mixed, Dialect::Tessera);

    EXPECT_EQ(deepspeed.value,
              json_of(R"({"train_batch_size": 8, "fp16": {"enabled": true, "hysteresis": 3},
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}, "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 1, "overlap_comm": true}})"))
        << key;
    EXPECT_EQ(*ours.value.find("model"), json_of(R"({"hidden_size": 16})")) << key;
  }
}

TEST(ColossalToOurs, NamesWhatIsSaidTwice) {
  const Converted out = convert_config(
      json_of(R"({"NUM_EPOCHS": 2, "trainer": {"epochs": 3, "seed": 7}})"), Dialect::Tessera);

  EXPECT_EQ(out.value, json_of(R"({"trainer": {"epochs": 2, "seed": 7}})"));
  EXPECT_THAT(out.notes, ElementsAre(HasSubstr("trainer.epochs = 3 is left out")));
}

TEST(ColossalToOurs, TakesTheOptimizersArgumentsAndTheModels) {
  const json::Value python = parse_python(
      "BATCH_SIZE = 8\noptimizer = dict(type='Adam', lr=1.5e-4, betas=(0.9, 0.95), eps=1e-6,\n"
      "                 weight_decay=1e-2)\nmodel = dict(type='GPT2', hidden_size=16)\n",
      "config.py");

  const Converted out = convert_config(python, Dialect::Tessera);

  EXPECT_EQ(out.value, json_of(R"({"train_micro_batch_size_per_gpu": 8,
    "optimizer": {"type": "Adam", "params": {"lr": 1.5e-4, "betas": [0.9, 0.95], "eps": 1e-6,
                                             "weight_decay": 1e-2, "adam_w_mode": false},
                  "decay_all": true},
    "model": {"hidden_size": 16}})"));
  EXPECT_THAT(out.notes, ElementsAre(HasSubstr("model.type = \"GPT2\"")));
}

// torch's optimizers decay all parameters, its Adam through the gradient and AdamW directly.
TEST(ColossalToOurs, AWeightDecayKeepsTorchsMeaning) {
  const auto optimizer_of = [](const std::string& arguments) {
    return convert_config(
               parse_python("BATCH_SIZE = 8\noptimizer = dict(" + arguments + ")", "config.py"),
               Dialect::Tessera)
        .value;
  };
  const auto same = [&](const std::string& arguments, const std::string& optimizer) {
    EXPECT_EQ(*optimizer_of(arguments).find("optimizer"), json_of(optimizer)) << arguments;
  };
  same("type='AdamW', lr=1e-3, weight_decay=0.1",
       R"({"type":"AdamW","params":{"lr":1e-3,"weight_decay":0.1},"decay_all":true})");
  same("type='SGD', lr=1e-3, momentum=0.9, nesterov=True, weight_decay=0.1",
       R"({"type":"SGD","params":{"lr":1e-3,"weight_decay":0.1,"momentum":0.9,)"
       R"("nesterov":true},"decay_all":true})");
  same("type='HybridAdam', lr=1e-3, adamw_mode=False, weight_decay=0.1",
       R"({"type":"HybridAdam","params":{"lr":1e-3,"weight_decay":0.1,"adamw_mode":false},)"
       R"("decay_all":true})");
  same("type='Adam', lr=1e-3, weight_decay=0",
       R"({"type":"Adam","params":{"lr":1e-3,"weight_decay":0}})");
}

TEST(ColossalToOurs, ClassesThatAreNamedKeepTheirMeaning) {
  const json::Value python = parse_python(
      "from torch.optim import Adam\nBATCH_SIZE = 8\n"
      "model = dict(type='GPT2_exlarge', checkpoint=True, vocab_size=50304)\n"
      "optimizer = dict(type=Adam, lr=1.5e-4)\n",
      "config.py");

  const Converted out = convert_config(python, Dialect::Tessera);

  EXPECT_EQ(out.value, json_of(R"({"train_micro_batch_size_per_gpu": 8,
    "optimizer": {"type": "Adam", "params": {"lr": 1.5e-4}},
    "activation_checkpointing": {"granularity": "full"},
    "model": {"preset": "gpt2-exlarge", "vocab_size": 50304}})"));
  EXPECT_THAT(out.notes, IsEmpty());
}

TEST(ColossalToOurs, WhatIsOffStaysOff) {
  const auto of = [](const char* lines) {
    return convert_config(parse_python(std::string("BATCH_SIZE = 4\n") + lines, "c.py"),
                          Dialect::Tessera);
  };
  const json::Value batch = json_of(R"({"train_micro_batch_size_per_gpu": 4})");

  for (const char* lines :
       {"zero = None\nfp16 = None\n", "fp16 = dict(mode=None)\n", "NUM_CHUNKS = None\n"}) {
    const Converted out = of(lines);
    EXPECT_EQ(out.value, batch) << lines;
    EXPECT_THAT(out.notes, IsEmpty()) << lines;
  }
  EXPECT_EQ(of("fp16 = dict(mode=AMP_TYPE.TORCH, enabled=False, init_scale=1024)\n").value,
            json_of(R"({"train_micro_batch_size_per_gpu": 4,
              "fp16": {"enabled": false, "scaler": "megatron", "initial_scale": 1024}})"));
}

TEST(ColossalToDeepSpeed, PyTorchsStartOfTheScaleBecomesAPower) {
  const auto of = [](const char* start) {
    return convert_config(
        json_of(
            fmt::format(R"({{"fp16": {{"mode": "AMP_TYPE.TORCH", "init_scale": {}}}}})", start)),
        Dialect::DeepSpeed);
  };

  EXPECT_EQ(of("1024").value, json_of(R"({"fp16": {"enabled": true, "initial_scale_power": 10}})"));
  EXPECT_THAT(of("1000").notes, Contains(HasSubstr("1000 becomes 2 to the power of 10")));
}

TEST(ColossalToOurs, PythonIsColossalsWhateverItsKeys) {
  const json::Value python =
      parse_python("gradient_accumulation = 4\nparallel = dict(data=1, pipeline=2)\n", "config.py");

  const Converted out = convert_config(python, Dialect::ColossalAi, Dialect::Tessera);

  EXPECT_EQ(out.value.find("gradient_accumulation"), nullptr);
  EXPECT_EQ(out.value.find("gradient_accumulation_steps")->as_integer(), 4);
}

TEST(ColossalToDeepSpeed, IsConvertedThroughOurConfiguration) {
  const Converted out = convert_config(json_of(kTutorial), Dialect::DeepSpeed);

  EXPECT_EQ(out.value, json_of(R"({"train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 48, "gradient_clipping": 1.0, "pipeline": {"stages": 2},
    "tensor_parallel": {"autotp_size": 2},
    "fp16": {"enabled": true, "initial_scale_power": 16, "loss_scale_window": 1000}})"));
  EXPECT_THAT(
      out.notes,
      AllOf(Contains(HasSubstr("trainer.epochs = 60 has no counterpart in DeepSpeed")),
            Contains(HasSubstr("fp16.scaler = \"megatron\" has no counterpart in DeepSpeed")),
            Contains(HasSubstr("fp16.max_scale = 1048576 has no counterpart in DeepSpeed")),
            Contains(HasSubstr("parallel.pipeline.chunks = 2"))));
}

TEST(DeepSpeedToOurs, NamesWhatHasNoMeaningHere) {
  const Converted out =
      convert_config(json_of(R"({"train_batch_size": "auto", "bfloat16": {"enabled": true},
      "zero_optimization": {"stage": 1, "overlap_comm": true}, "sequence_parallel_size": 2,
      "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}, "somebodys": 1})"),
                     Dialect::Tessera);

  EXPECT_EQ(out.value, json_of(R"({"train_batch_size": "auto", "bf16": {"enabled": true},
    "zero_optimization": {"stage": 1}, "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}})"));
  EXPECT_THAT(
      out.notes,
      ElementsAre(
          HasSubstr("zero_optimization.overlap_comm = true has no counterpart in tessera"),
          AllOf(HasSubstr("sequence_parallel_size is left out"), HasSubstr("not built yet")),
          HasSubstr("somebodys is left out: unknown key")));
}

TEST(DeepSpeedToOurs, KeepsPipelinesAndTensorParallelRanks) {
  const json::Value deepspeed = json_of(R"({"train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 8, "pipeline": {"stages": 2, "partition": "uniform"},
    "tensor_parallel": {"autotp_size": 2}})");

  const Converted ours = convert_config(deepspeed, Dialect::Tessera);
  const Converted back = convert_config(ours.value, Dialect::DeepSpeed);

  EXPECT_EQ(ours.value, json_of(R"({"train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 8,
    "parallel": {"pipeline": {"size": 2, "partition": "uniform"}, "tensor": {"size": 2}}})"));
  EXPECT_EQ(back.value, deepspeed);
  EXPECT_THAT(ours.notes, IsEmpty());
  EXPECT_THAT(back.notes, IsEmpty());
}

TEST(OursToDeepSpeed, NamesWhatAScriptHasToSay) {
  const Converted out = convert_config(json_of(R"({"model": {"preset": "nano"},
      "data": {"train": "a.txt", "drop_last": false}, "train_batch_size": 8,
      "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}, "decay_all": true},
      "scheduler": {"type": "WarmupCosine"}, "checkpoint": {"every": 100}})"),
                                       Dialect::DeepSpeed);

  EXPECT_EQ(out.value, json_of(R"({"train_batch_size": 8, "dataloader_drop_last": false,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.001}}})"));
  EXPECT_THAT(out.notes,
              ElementsAre(HasSubstr("scheduler.type"),
                          HasSubstr("model.preset"),
                          HasSubstr("data.train"),
                          HasSubstr("optimizer.decay_all"),
                          HasSubstr("checkpoint.every")));
}

TEST(DeepSpeedToColossal, TurnsTheScalerAround) {
  const Converted out = convert_config(json_of(R"({"train_micro_batch_size_per_gpu": 4,
      "gradient_accumulation_steps": 8, "gradient_clipping": 0.5, "fp16": {"enabled": true,
      "initial_scale_power": 16, "hysteresis": 2}, "steps_per_print": 10})"),
                                       Dialect::ColossalAi);

  EXPECT_EQ(out.value, json_of(R"({"gradient_accumulation": 8, "BATCH_SIZE": 4,
    "clip_grad_norm": 0.5,
    "fp16": {"mode": "AMP_TYPE.NAIVE", "initial_scale": 65536, "hysteresis": 2}})"));
  EXPECT_THAT(out.notes, ElementsAre(HasSubstr("steps_per_print = 10")));
}

TEST(OursToDeepSpeed, KnowsSchedulesInAnyCaseAndWritesTheirNames) {
  const Converted out = convert_config(json_of(R"({"trainer": {"epochs": 1},
        "scheduler": {"type": "warmuplr", "params": {"warmup_num_steps": 10}}})"),
                                       Dialect::DeepSpeed);

  EXPECT_EQ(out.value, json_of(R"({"scheduler": {"type": "WarmupLR",
                                                 "params": {"warmup_num_steps": 10}}})"));
}

// 2^64 has more than the 63 bits of an integer.
TEST(DeepSpeedToColossal, WritesLargeScalesAsNumbers) {
  const Converted out = convert_config(
      json_of(R"({"fp16": {"enabled": true, "initial_scale_power": 64}})"), Dialect::ColossalAi);

  EXPECT_EQ(out.value.find("fp16")->find("initial_scale")->as_double(), 18446744073709551616.0);
}

TEST(DeepSpeedToColossal, NamesThatZeroIsFp16) {
  const auto notes = [](const char* precision) {
    return convert_config(
               json_of(std::string("{") + precision + R"("zero_optimization": {"stage": 3}})"),
               Dialect::ColossalAi)
        .notes;
  };

  EXPECT_THAT(notes(""), ElementsAre(HasSubstr("zero, which trains in fp16")));
  EXPECT_THAT(notes(R"("fp16": {"enabled": true}, )"), IsEmpty());
}

// Converting there and back changes nothing that both dialects can express.
TEST(Conversions, AreEachOthersInverse) {
  const json::Value deepspeed = json_of(R"({"train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 8, "gradient_clipping": 1.0, "bf16": {"enabled": true},
    "zero_optimization": {"stage": 3, "reduce_bucket_size": 5e8},
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}}, "steps_per_print": 5})");
  const json::Value colossal = json_of(R"({"NUM_MICRO_BATCHES": 8, "BATCH_SIZE": 32,
    "clip_grad_norm": 1.0, "NUM_EPOCHS": 2, "SEQ_LEN": 64, "parallel": {"pipeline": 2},
    "fp16": {"mode": "AMP_TYPE.NAIVE", "initial_scale": 1024, "hysteresis": 3, "min_scale": 2}})");

  const Converted ours = convert_config(deepspeed, Dialect::Tessera);
  const Converted back = convert_config(ours.value, Dialect::DeepSpeed);
  const Converted from_colossal = convert_config(colossal, Dialect::Tessera);
  const Converted to_colossal = convert_config(from_colossal.value, Dialect::ColossalAi);

  EXPECT_EQ(back.value, deepspeed);
  EXPECT_EQ(to_colossal.value, colossal);
  EXPECT_THAT(ours.notes, IsEmpty());
  EXPECT_THAT(from_colossal.notes, IsEmpty());
  EXPECT_THAT(to_colossal.notes, IsEmpty());
}

TEST(Conversions, OfPythonTrainOnceThereIsData) {
  const json::Value python = parse_python(
      "BATCH_SIZE = 8\nNUM_EPOCHS = 1\nSEQ_LEN = 64\nHIDDEN_SIZE = 128\nDEPTH = 2\n"
      "NUM_ATTENTION_HEADS = 4\nclip_grad_norm = 1.0\n",
      "config.py");

  Converted ours = convert_config(python, Dialect::Tessera);
  ours.value["data"]["train"] = json::Value::string("a.txt");
  const planner::Plan plan = planner::make_plan(ours.value, 2, "config.py");

  EXPECT_EQ(plan.recipe().global_batch, 16);
  EXPECT_EQ(plan.model().resolved.num_layers, 2);
  EXPECT_EQ(plan.recipe().epochs, 1.0);
}

}  // namespace
}  // namespace tessera::interop
