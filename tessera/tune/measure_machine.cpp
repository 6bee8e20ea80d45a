// SPDX-License-Identifier: Apache-2.0
#include "tessera/tune/measure_machine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/median.h"
#include "tessera/base/text.h"
#include "tessera/comm/measure.h"
#include "tessera/engine/launch.h"
#include "tessera/engine/random_tokens.h"
#include "tessera/engine/step_profile.h"
#include "tessera/launch/launch.h"
#include "tessera/launch/machine.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/place.h"
#include "tessera/planner/with_data.h"
#include "tessera/predict/step_time.h"

namespace tessera::tune {
namespace {

namespace fs = std::filesystem;

/// A model that is trained to measure, and the tokens of a step.
struct Sample {
  std::int64_t layers, hidden, length, micro;
};
constexpr std::array kSamples = {
    Sample{2, 64, 64, 1}, Sample{2, 128, 128, 4}, Sample{2, 384, 256, 4}, Sample{2, 768, 512, 2}};
constexpr std::int64_t kVocabulary = 8192;

json::Value source_of(const Sample& sample, bool bf16, int threads) {
  const auto integer = [](std::int64_t value) { return json::Value::integer(value); };
  json::Value out;
  json::Value& model = out["model"];
  model["num_layers"] = integer(sample.layers);
  model["hidden_size"] = integer(sample.hidden);
  model["num_heads"] = integer(sample.hidden / 64);
  model["vocab_size"] = integer(kVocabulary);
  model["max_positions"] = integer(sample.length);
  out["tokenizer"]["type"] = json::Value::string("byte");
  out["data"]["train"] = json::Value::string("random tokens");
  out["data"]["sequence_length"] = integer(sample.length);
  out["train_micro_batch_size_per_gpu"] = integer(sample.micro);
  out["trainer"]["max_steps"] = integer(100);
  out["bf16"]["enabled"] = json::Value::boolean(bf16);
  out["run"]["threads_per_rank"] = integer(threads);
  return out;
}

json::Value row_json(const ops::OpRow& row) {
  return json::Value::array({json::Value::string(row.name),
                             json::Value::integer(static_cast<int>(row.shape_class)),
                             json::Value::integer(static_cast<int>(row.dtype)),
                             json::Value::integer(row.calls),
                             json::Value::number(row.seconds),
                             json::Value::number(row.flops),
                             json::Value::number(row.bytes)});
}

ops::OpRow row_of(const json::Value& value) {
  const std::vector<json::Value>& items = value.items();
  ops::OpRow out;
  out.name = items.at(0).as_string();
  out.shape_class = static_cast<ShapeClass>(items.at(1).as_integer().value_or(0));
  out.dtype = static_cast<DType>(items.at(2).as_integer().value_or(0));
  out.calls = items.at(3).as_integer().value_or(0);
  out.seconds = items.at(4).as_double();
  out.flops = items.at(5).as_double();
  out.bytes = items.at(6).as_double();
  return out;
}

/// The findings of ranks, which they leave in a file.
json::Value measured_by(int code, const fs::path& file, const std::string& what) {
  std::error_code ignored;
  TESSERA_REQUIRE(code == 0 && fs::exists(file, ignored),
                  Environment,
                  fmt::format("{} could not be measured: the ranks ended with {}", what, code),
                  "tessera bench step and tessera bench comm show the parts");
  return json::parse_strict(files::read(file), file.string());
}

std::shared_ptr<data::Datasets> data_of(const Sample& sample) {
  auto out = std::make_shared<data::Datasets>();
  out->train = std::make_unique<engine::RandomTokens>(sample.length, 256);
  return out;
}

planner::PlanWithData plan_of(const Sample& sample, bool bf16, int threads) {
  return planner::with_data(planner::make_plan(source_of(sample, bf16, threads), 1, "machine.json"),
                            *data_of(sample));
}

/// The operations of a few steps, and what a step takes without a log of them.
json::Value profile(const Sample& sample, bool bf16, int threads, const fs::path& file) {
  const std::shared_ptr<data::Datasets> data = data_of(sample);
  const planner::PlacedPlan plan =
      planner::place(plan_of(sample, bf16, threads), launch::available_memory());
  const auto measure = [&](comm::World& world) -> int {
    const auto engine = engine::initialize(plan, world, data);
    // Small steps are repeated more often: they vary more.
    const std::int64_t steps = sample.hidden < 256 ? 20 : 3;
    std::vector<double> plain;
    for (std::int64_t step = 0; step < steps + 1; ++step) {
      const engine::StepReport report = engine->train_step();
      if (report.stop_requested) return 1;
      if (step > 0) plain.push_back(report.seconds);
    }
    const auto profile = engine::profile_steps(*engine, /*warmup=*/0, steps);
    engine->finish();
    if (!profile) return 1;
    json::Value out;
    out["flops"] = json::Value::number(profile->peak.flops);
    out["bytes"] = json::Value::number(profile->peak.bytes);
    out["step"] = json::Value::number(median_of(plain));
    out["rows"] = json::Value::array();
    for (const ops::OpRow& row : profile->operations)
      out["rows"].push_back(row_json(row));
    files::write_atomic(file, out.dump());
    return 0;
  };
  const int code = engine::run_ranks(plan, engine::log_failure, measure, launch::Messages());
  return measured_by(code, file, "a small training");
}

/// The latency and the bytes per second between two ranks, from the smallest and the largest
/// all-gather.
Rate measure_link(const fs::path& file) {
  const comm::MeasureOptions options{.bytes = {std::size_t{4} << 10, std::size_t{16} << 20},
                                     .repetitions = 7,
                                     .seconds = 10,
                                     .ordinary = false};
  const int code = engine::run_ranks(
      mesh::Mesh::data_parallel(2),
      /*threads=*/1,
      engine::log_failure,
      [&](comm::World& world) {
        json::Value found = json::Value::array();
        for (const comm::CollectiveSpeed& speed : comm::measure_collectives(world, options)) {
          if (speed.operation == "all-gather")
            found.push_back(
                json::Value::array({json::Value::number(static_cast<double>(speed.bytes)),
                                    json::Value::number(speed.seconds)}));
        }
        if (world.is_leader()) files::write_atomic(file, found.dump());
        return 0;
      },
      "auto");
  const json::Value found = measured_by(code, file, "the link between ranks");
  TESSERA_REQUIRE(found.items().size() == 2,
                  Environment,
                  "the link between ranks could not be measured: there is no all-gather",
                  "");
  const double few = found.items()[0].items()[1].as_double(),
               many = found.items()[1].items()[1].as_double(),
               bytes = found.items()[1].items()[0].as_double() / 2;  // from one other rank
  return {.latency_s = few, .bytes_per_s = bytes / std::max(many - few, 1e-9)};
}

std::map<int, std::vector<double>> by_decade(const std::vector<ops::OpRow>& rows,
                                             const std::function<bool(const ops::OpRow&)>& takes,
                                             double ops::OpRow::*work) {
  std::map<int, std::vector<double>> out;
  for (const ops::OpRow& row : rows) {
    if (!takes(row) || row.calls <= 0 || row.seconds <= 0 || row.*work <= 0) continue;
    const double size = row.*work / static_cast<double>(row.calls);
    out[static_cast<int>(std::lround(2 * std::log10(size)))].push_back(row.*work / row.seconds);
  }
  return out;
}

predict::Curve curve_of(const std::map<int, std::vector<double>>& rates, double peak, double most) {
  constexpr double kLeast = 1e-6;
  predict::Curve out;
  for (const auto& [half_decades, of] : rates)
    out.points.emplace_back(std::pow(10.0, half_decades / 2.0),
                            std::clamp(median_of(of) / peak, kLeast, most));
  return out;
}

/// Classes of operations that compute little.
constexpr std::array kOfMemory = {ShapeClass::Rows, ShapeClass::Elementwise, ShapeClass::Update};

bool is_memory(const ops::OpRow& row) {
  return std::ranges::find(kOfMemory, row.shape_class) != kOfMemory.end();
}

}  // namespace

predict::Curve efficiency_of(const std::vector<ops::OpRow>& rows,
                             ShapeClass shape,
                             DType dtype,
                             double peak) {
  const auto takes = [&](const ops::OpRow& row) {
    return row.shape_class == shape && row.dtype == dtype;
  };
  return curve_of(by_decade(rows, takes, &ops::OpRow::flops), peak, 1.0);
}

predict::Curve memory_efficiency_of(const std::vector<ops::OpRow>& rows, double bytes_per_s) {
  return curve_of(
      by_decade(rows, is_memory, &ops::OpRow::bytes), bytes_per_s, predict::kMostOfMemory);
}

namespace {

std::string in_words(int threads) {
  return threads == 1 ? "1 thread" : fmt::format("{} threads", threads);
}

/// The time between two operations: what the prediction of a step of the smallest model leaves of
/// its measured time, for each of its operations. `steps_s`: that of fp32 and of bf16.
double overhead_of(const predict::ThreadRates& rates,
                   int threads,
                   const std::array<double, 2>& steps_s) {
  predict::DescribedMachine machine;
  static_cast<predict::OperationRates&>(machine) = rates;
  machine.rates.memory = rates.memory;
  double rest = 0;
  std::int64_t calls = 0;
  for (const bool bf16 : {false, true}) {
    const planner::PlanWithData plan = plan_of(kSamples.front(), bf16, threads);
    predict::WorkCache cache;
    rest += steps_s.at(bf16 ? 1 : 0) - predict::predict_step(plan, machine, cache).seconds;
    for (const parallel::BlockWork& block : *cache.work(plan)) {
      for (const auto& [kind, pass] : block) {
        for (const ops::OpRow& row : pass.operations)
          calls += row.calls;
      }
    }
  }
  return calls > 0 ? std::max(0.0, rest) / static_cast<double>(calls) : 0;
}

/// What a rank with a number of threads reaches in small trainings.
predict::ThreadRates measure_threads(int threads,
                                     const fs::path& folder,
                                     const std::function<void(const std::string&)>& tell) {
  predict::ThreadRates out;
  std::vector<ops::OpRow> rows;
  double bytes_per_s = 0;
  std::array<double, 2> steps_s{};
  for (const bool bf16 : {false, true}) {
    const DType type = bf16 ? DType::BF16 : DType::F32;
    std::vector<ops::OpRow> of_type;
    for (std::size_t i = 0; i < kSamples.size(); ++i) {
      const json::Value found = profile(
          kSamples[i], bf16, threads, folder / fmt::format("{}-{}-{}.json", threads, bf16, i));
      const auto value = [&](const char* key) { return found.find(key)->as_double(); };
      out.peak[type] = std::max(out.peak[type], value("flops"));
      bytes_per_s = std::max(bytes_per_s, value("bytes"));
      if (i == 0) steps_s.at(bf16 ? 1 : 0) = value("step");
      for (const json::Value& row : found.find("rows")->items())
        of_type.push_back(row_of(row));
    }
    tell(fmt::format("products    {} with {}: {:.1f} GFLOP/s",
                     bf16 ? "bf16" : "fp32",
                     in_words(threads),
                     out.peak[type] / 1e9));
    for (const ShapeClass shape : {ShapeClass::LargeProduct,
                                   ShapeClass::TallProduct,
                                   ShapeClass::FewRows,
                                   ShapeClass::Grouped,
                                   ShapeClass::Attention}) {
      predict::Curve curve = efficiency_of(of_type, shape, type, out.peak[type]);
      if (!curve.points.empty()) out.efficiency_of[type][shape] = std::move(curve);
    }
    std::ranges::move(of_type, std::back_inserter(rows));
  }
  out.memory.bytes_per_s = bytes_per_s;
  out.memory_efficiency = memory_efficiency_of(rows, bytes_per_s);
  for (const ShapeClass shape : kOfMemory) {
    std::vector<ops::OpRow> of_class;
    std::ranges::copy_if(rows, std::back_inserter(of_class), [&](const ops::OpRow& row) {
      return row.shape_class == shape;
    });
    predict::Curve curve = memory_efficiency_of(of_class, bytes_per_s);
    if (!curve.points.empty()) out.memory_efficiency_of[shape] = std::move(curve);
  }
  out.op_overhead_s = overhead_of(out, threads, steps_s);
  tell(fmt::format("memory      with {}: {:.1f} GB/s, {:.1f} us between operations",
                   in_words(threads),
                   bytes_per_s / 1e9,
                   1e6 * out.op_overhead_s));
  return out;
}

}  // namespace

predict::DescribedMachine measure_machine(const std::function<void(const std::string&)>& tell) {
  const files::TempDir folder;
  const launch::Machine facts = launch::machine();
  predict::DescribedMachine out;
  out.name = "here";
  out.title = facts.cpu.empty() ? facts.host : facts.cpu;
  out.source = "tessera bench machine";
  out.cores = facts.usable_cores;
  out.memory_bytes = static_cast<double>(launch::available_memory());
  out.collectives = predict::Collectives::Own;
  out.overlap_tax = 1;  // a rank's own cores copy what it receives
  const predict::ThreadRates all = measure_threads(out.cores, folder.path(), tell);
  static_cast<predict::OperationRates&>(out) = all;
  out.rates.memory = all.memory;
  out.rates.op_overhead_s = all.op_overhead_s;
  // What one thread reaches is more than its share: nothing waits for other threads.
  if (out.cores > 1) out.of_threads[1] = measure_threads(1, folder.path(), tell);
  out.rates.in_host = measure_link(folder.path() / "link.json");
  tell(fmt::format("ranks       {:.1f} GB/s between two, {:.1f} us",
                   out.rates.in_host.bytes_per_s / 1e9,
                   1e6 * out.rates.in_host.latency_s));
  constexpr double kUncertainty = 0.25;  // 95 of 100 cells of bench/run_plan_grid.sh
  out.uncertainty = kUncertainty;
  return out;
}

}  // namespace tessera::tune
