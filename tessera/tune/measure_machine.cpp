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

namespace tessera::tune {
namespace {

namespace fs = std::filesystem;

/// A model that is trained to measure, and the tokens of a step.
struct Sample {
  std::int64_t layers, hidden, length, micro;
};
constexpr std::array kSamples = {
    Sample{2, 128, 128, 4}, Sample{2, 384, 256, 4}, Sample{2, 768, 512, 2}};
constexpr std::int64_t kVocabulary = 8192;

json::Value source_of(const Sample& sample, bool bf16) {
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

/// The operations of a few steps, the peaks, and the seconds of a step outside of operations.
json::Value profile(const Sample& sample, bool bf16, const fs::path& file) {
  const planner::Plan asked = planner::make_plan(source_of(sample, bf16), 1, "machine.json");
  auto data = std::make_shared<data::Datasets>();
  data->train = std::make_unique<engine::RandomTokens>(sample.length, 256);
  const planner::PlacedPlan plan =
      planner::place(planner::with_data(asked, *data), launch::available_memory());
  const auto measure = [&](comm::World& world) -> int {
    const auto engine = engine::initialize(plan, world, data);
    constexpr std::int64_t kWarmup = 1, kSteps = 3;
    const auto profile = engine::profile_steps(*engine, kWarmup, kSteps);
    engine->finish();
    if (!profile) return 1;
    json::Value out;
    out["flops"] = json::Value::number(profile->peak.flops);
    out["bytes"] = json::Value::number(profile->peak.bytes);
    out["rest"] = json::Value::number(profile->rest() / static_cast<double>(kSteps));
    std::int64_t calls = 0;
    out["rows"] = json::Value::array();
    for (const ops::OpRow& row : profile->operations) {
      calls += row.calls;
      out["rows"].push_back(row_json(row));
    }
    out["calls"] = json::Value::integer(calls / kSteps);
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

predict::Curve curve_of(const std::map<int, std::vector<double>>& rates, double peak) {
  constexpr double kLeast = 1e-4;
  predict::Curve out;
  for (const auto& [half_decades, of] : rates)
    out.points.emplace_back(std::pow(10.0, half_decades / 2.0),
                            std::clamp(median_of(of) / peak, kLeast, 1.0));
  return out;
}

bool is_memory(const ops::OpRow& row) {
  return row.shape_class == ShapeClass::Rows || row.shape_class == ShapeClass::Elementwise ||
         row.shape_class == ShapeClass::Update;
}

}  // namespace

predict::Curve efficiency_of(const std::vector<ops::OpRow>& rows,
                             ShapeClass shape,
                             DType dtype,
                             double peak) {
  const auto takes = [&](const ops::OpRow& row) {
    return row.shape_class == shape && row.dtype == dtype;
  };
  return curve_of(by_decade(rows, takes, &ops::OpRow::flops), peak);
}

predict::Curve memory_efficiency_of(const std::vector<ops::OpRow>& rows, double bytes_per_s) {
  return curve_of(by_decade(rows, is_memory, &ops::OpRow::bytes), bytes_per_s);
}

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
  std::vector<ops::OpRow> rows;
  double bytes_per_s = 0, rest = 0;
  std::int64_t calls = 0;
  for (const bool bf16 : {false, true}) {
    const DType type = bf16 ? DType::BF16 : DType::F32;
    std::vector<ops::OpRow> of_type;
    for (std::size_t i = 0; i < kSamples.size(); ++i) {
      const json::Value found =
          profile(kSamples[i], bf16, folder.path() / fmt::format("{}-{}.json", bf16, i));
      out.peak[type] = std::max(out.peak[type], found.find("flops")->as_double());
      bytes_per_s = std::max(bytes_per_s, found.find("bytes")->as_double());
      if (i == 0) {
        rest += found.find("rest")->as_double();
        calls += found.find("calls")->as_integer().value_or(0);
      }
      for (const json::Value& row : found.find("rows")->items())
        of_type.push_back(row_of(row));
    }
    tell(fmt::format(
        "products    {}: {:.1f} GFLOP/s", bf16 ? "bf16" : "fp32", out.peak[type] / 1e9));
    for (const ShapeClass shape : {ShapeClass::LargeProduct,
                                   ShapeClass::TallProduct,
                                   ShapeClass::FewRows,
                                   ShapeClass::Grouped,
                                   ShapeClass::Attention}) {
      predict::Curve curve = efficiency_of(of_type, shape, type, out.peak[type]);
      if (!curve.points.empty() && (!out.efficiency.contains(shape) || bf16))
        out.efficiency[shape] = std::move(curve);
    }
    std::ranges::move(of_type, std::back_inserter(rows));
  }
  out.rates.memory.bytes_per_s = bytes_per_s;
  out.memory_efficiency = memory_efficiency_of(rows, bytes_per_s);
  out.rates.op_overhead_s = calls > 0 ? rest / static_cast<double>(calls) : 0;
  tell(fmt::format("memory      {:.1f} GB/s", bytes_per_s / 1e9));
  out.rates.in_host = measure_link(folder.path() / "link.json");
  tell(fmt::format("ranks       {:.1f} GB/s between two, {:.1f} us",
                   out.rates.in_host.bytes_per_s / 1e9,
                   1e6 * out.rates.in_host.latency_s));
  constexpr double kUncertainty = 0.15;
  out.uncertainty = kUncertainty;
  return out;
}

}  // namespace tessera::tune
