// SPDX-License-Identifier: Apache-2.0
#include "tessera/predict/described_machine.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <set>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/text/tokenizer.h"

namespace tessera::predict {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMeasure = "tessera bench machine measures this machine";
constexpr const char* kOthers = "others";  // of memory_efficiency
constexpr std::array kTypes = {std::pair("fp64", DType::F64),
                               std::pair("fp32", DType::F32),
                               std::pair("bf16", DType::BF16),
                               std::pair("fp16", DType::F16),
                               std::pair("int8", DType::I8)};

// The name of a class in a file: "large_product".
std::string key_of(ShapeClass shape) {
  std::string out(tessera::name(shape));
  std::ranges::replace(out, ' ', '_');
  return out;
}

[[noreturn]] void refuse(const json::Value& at, const std::string& what, const std::string& fix) {
  throw Error(Error::Kind::Config, at.place.text() + ": " + what, fix);
}

// Reads the members of one object and refuses those that nobody asks for.
class Reader {
 public:
  Reader(const json::Value& object, std::string path) : object_(object), path_(std::move(path)) {
    if (!object.is_object())
      refuse(
          object, fmt::format("{}: expected an object, found {}", name(), object.type_name()), "");
  }

  const json::Value* find(const std::string& key) {
    asked_.push_back(key);
    const json::Value* const found = object_.find(key);
    return found != nullptr && found->is_null() ? nullptr : found;
  }
  // A number from `least` on; nothing if the key is absent.
  std::optional<double> number(const std::string& key, double least = 0) {
    const json::Value* const value = find(key);
    if (value == nullptr) return std::nullopt;
    const double out = value->is_number() ? value->as_double() : std::nan("");
    if (!(out >= least) || !std::isfinite(out))
      refuse(*value,
             fmt::format("{}: expected a number from {} on", json::join_path(path_, key), least),
             "");
    return out;
  }
  double rate(const std::string& key) {
    const auto value = number(key);
    if (!value || *value <= 0) {
      refuse(value ? *object_.find(key) : object_,
             fmt::format("{}: the rate is missing", json::join_path(path_, key)),
             kMeasure);
    }
    return *value;
  }
  std::string word(const std::string& key) {
    const json::Value* const value = find(key);
    return value == nullptr ? "" : value->as_string();
  }
  void end() const {
    for (const auto& [key, value] : object_.members()) {
      if (std::ranges::find(asked_, key) != asked_.end()) continue;
      throw Error(
          Error::Kind::Config,
          fmt::format("{}: {}: unknown key", value.key_place.text(), json::join_path(path_, key)),
          text::suggestion(key, asked_));
    }
  }

 private:
  [[nodiscard]] std::string name() const { return path_.empty() ? "the machine" : path_; }

  const json::Value& object_;
  std::string path_;
  std::vector<std::string> asked_;
};

Rate read_rate(const json::Value& source, const std::string& path) {
  Reader in(source, path);
  Rate out{.latency_s = in.number("latency_s").value_or(0), .bytes_per_s = in.rate("bytes_per_s")};
  in.end();
  return out;
}

// A share, or a list of pairs of a size and a share.
Curve read_curve(const json::Value& source, const std::string& path, double most = 1) {
  Curve out;
  const auto share = [&](const json::Value& value) {
    const double number = value.is_number() ? value.as_double() : -1;
    if (!(number > 0 && number <= most))
      refuse(value, fmt::format("{}: expected a share from above 0 to {}", path, most), "");
    return number;
  };
  if (source.is_number()) {
    out.points.emplace_back(1, share(source));
    return out;
  }
  const char* const fix = "a share, or pairs in ascending order: [[1e9, 0.5], [1e11, 0.8]]";
  if (!source.is_array() || source.items().empty())
    refuse(source, path + ": expected a curve", fix);
  for (const json::Value& item : source.items()) {
    const bool pair = item.is_array() && item.items().size() == 2 && item.items()[0].is_number();
    const double size = pair ? item.items()[0].as_double() : 0;
    if (!(size > 0) || (!out.points.empty() && size <= out.points.back().first))
      refuse(item, path + ": expected a size above that of the point before", fix);
    out.points.emplace_back(size, share(item.items()[1]));
  }
  return out;
}

template <class Fn>
void each_type(const json::Value& source, const std::string& path, Fn fn) {
  Reader in(source, path);
  for (const auto& [name, type] : kTypes) {
    if (in.find(name) != nullptr) fn(type, in.rate(name));
  }
  in.end();
}

// The curves that a reader has under the keys of classes.
std::map<ShapeClass, Curve> read_curves(Reader& in, const std::string& path, double most = 1) {
  std::map<ShapeClass, Curve> out;
  for (int i = 0; i < kNumShapeClasses; ++i) {
    const auto shape = static_cast<ShapeClass>(i);
    const std::string key = key_of(shape);
    if (const json::Value* const curve = in.find(key))
      out[shape] = read_curve(*curve, json::join_path(path, key), most);
  }
  return out;
}

void read_efficiency(const json::Value& source, const std::string& path, OperationRates& out) {
  Reader in(source, path);
  out.efficiency = read_curves(in, path);
  for (const auto& [name, type] : kTypes) {
    const json::Value* const own = in.find(name);
    if (own == nullptr) continue;
    Reader of_type(*own, json::join_path(path, name));
    out.efficiency_of[type] = read_curves(of_type, json::join_path(path, name));
    of_type.end();
  }
  in.end();
  for (const auto& [type, rate] : out.peak) {
    if (out.shares(type, ShapeClass::LargeProduct) == nullptr)
      refuse(source, json::join_path(path, "large_product") + ": the rate is missing", kMeasure);
  }
}

// One curve for all operations, or an object with one for each class and one for "others".
void read_memory_efficiency(const json::Value& source,
                            const std::string& path,
                            OperationRates& out) {
  if (!source.is_object()) {
    out.memory_efficiency = read_curve(source, path, kMostOfMemory);
    return;
  }
  Reader in(source, path);
  if (const json::Value* const others = in.find(kOthers))
    out.memory_efficiency = read_curve(*others, json::join_path(path, kOthers), kMostOfMemory);
  out.memory_efficiency_of = read_curves(in, path, kMostOfMemory);
  in.end();
}

// The rates of operations, of the machine or of a number of threads.
void read_operations(Reader& in,
                     const json::Value& source,
                     const std::string& path,
                     OperationRates& out,
                     Rate& memory,
                     double& op_overhead_s) {
  const auto part = [&](const char* key) -> const json::Value& {
    const json::Value* const found = in.find(key);
    if (found == nullptr)
      refuse(
          source, fmt::format("{}: the rates are missing", json::join_path(path, key)), kMeasure);
    return *found;
  };
  each_type(part("flops_per_s"),
            json::join_path(path, "flops_per_s"),
            [&](DType type, double rate) { out.peak[type] = rate; });
  read_efficiency(part("efficiency"), json::join_path(path, "efficiency"), out);
  memory = read_rate(part("memory"), json::join_path(path, "memory"));
  constexpr const char* kCurve = "memory_efficiency";
  if (const json::Value* const curves = in.find(kCurve))
    read_memory_efficiency(*curves, json::join_path(path, kCurve), out);
  op_overhead_s = in.number("op_overhead_s").value_or(0);
}

void read_threads(const json::Value& source, DescribedMachine& out) {
  const std::string path = "threads";
  if (!source.is_object()) refuse(source, path + ": expected an object", "");
  for (const auto& [number, rates] : source.members()) {
    const std::string of = json::join_path(path, number);
    char* end = nullptr;
    const long threads = std::strtol(number.c_str(), &end, 10);
    if (number.empty() || *end != '\0' || threads < 1 || threads >= out.cores)
      refuse(rates, of + ": expected a number of threads from 1 to below cores", "");
    ThreadRates& one = out.of_threads[static_cast<int>(threads)];
    Reader in(rates, of);
    read_operations(in, rates, of, one, one.memory, one.op_overhead_s);
    in.end();
  }
}

json::Value curve_json(const Curve& of) {
  json::Value out = json::Value::array();
  for (const auto& [size, share] : of.points)
    out.push_back(json::Value::array({json::Value::number(size), json::Value::number(share)}));
  return out;
}

json::Value rate_json(const Rate& of) {
  return json::Value::object({{"latency_s", json::Value::number(of.latency_s)},
                              {"bytes_per_s", json::Value::number(of.bytes_per_s)}});
}

void write_operations(const OperationRates& of,
                      const Rate& memory,
                      double op_overhead_s,
                      json::Value& out) {
  for (const auto& [name, type] : kTypes) {
    if (const auto found = of.peak.find(type); found != of.peak.end())
      out["flops_per_s"][name] = json::Value::number(found->second);
    if (const auto found = of.efficiency_of.find(type); found != of.efficiency_of.end()) {
      for (const auto& [shape, curve] : found->second)
        out["efficiency"][name][key_of(shape)] = curve_json(curve);
    }
  }
  for (const auto& [shape, curve] : of.efficiency)
    out["efficiency"][key_of(shape)] = curve_json(curve);
  out["memory"] = rate_json(memory);
  if (!of.memory_efficiency_of.empty()) {
    json::Value& curves = out["memory_efficiency"];
    if (!of.memory_efficiency.points.empty()) curves[kOthers] = curve_json(of.memory_efficiency);
    for (const auto& [shape, curve] : of.memory_efficiency_of)
      curves[key_of(shape)] = curve_json(curve);
  } else if (!of.memory_efficiency.points.empty()) {
    out["memory_efficiency"] = curve_json(of.memory_efficiency);
  }
  out["op_overhead_s"] = json::Value::number(op_overhead_s);
}

fs::path machines_of_program() {
  return text::share_dir() / "machines";
}

std::vector<fs::path> folders() {
  std::vector<fs::path> out;
  if (const char* const own = std::getenv("TESSERA_MACHINES"); own != nullptr && *own != '\0')
    out.emplace_back(own);
  out.push_back(machines_of_program());
  return out;
}

DescribedMachine read_file(const fs::path& file) {
  const json::Value source = json::parse(files::read(file), file.string());
  // A machine may begin with another one of the same folder and change some of its numbers.
  const json::Value* const base = source.find("extends");
  DescribedMachine out;
  if (base == nullptr) {
    out = read_machine(source);
  } else {
    const fs::path under = file.parent_path() / (base->as_string() + ".json");
    json::Value whole = json::parse(files::read(under), under.string());
    TESSERA_REQUIRE(whole.find("extends") == nullptr,
                    Config,
                    base->place.text() + ": extends names a machine that extends another one",
                    "name the first one");
    for (const auto& [key, value] : source.members()) {
      if (key != "extends") whole[key] = value;
    }
    out = read_machine(whole);
  }
  if (out.name.empty()) out.name = file.stem().string();
  return out;
}

}  // namespace

double Curve::at(double size) const {
  if (points.empty()) return 1;
  const auto above = std::ranges::find_if(points, [&](const auto& p) { return p.first >= size; });
  if (above == points.begin()) return above->second;
  if (above == points.end()) return points.back().second;
  const auto& [low, low_share] = *(above - 1);
  const auto& [high, high_share] = *above;
  const double part = std::log(size / low) / std::log(high / low);
  return low_share + part * (high_share - low_share);
}

const Curve* OperationRates::shares(DType type, ShapeClass shape) const {
  const auto of_type = efficiency_of.find(type);
  if (of_type != efficiency_of.end()) {
    if (const auto own = of_type->second.find(shape); own != of_type->second.end())
      return &own->second;
  }
  const auto of_all = efficiency.find(shape);
  return of_all == efficiency.end() ? nullptr : &of_all->second;
}

const Curve& OperationRates::memory_shares(ShapeClass shape) const {
  const auto own = memory_efficiency_of.find(shape);
  return own == memory_efficiency_of.end() ? memory_efficiency : own->second;
}

DescribedMachine read_machine(const json::Value& source) {
  Reader in(source, "");
  DescribedMachine out;
  out.name = in.word("name");
  out.title = in.word("title");
  out.source = in.word("source");
  out.memory_bytes = in.rate("memory_bytes");
  out.price_per_hour = in.number("price_per_hour").value_or(0);
  out.cores = static_cast<int>(in.number("cores").value_or(0));
  out.rates.name = out.name;
  read_operations(in, source, "", out, out.rates.memory, out.rates.op_overhead_s);
  if (const json::Value* const threads = in.find("threads")) read_threads(*threads, out);
  const json::Value* const in_host = in.find("in_host");
  if (in_host == nullptr) refuse(source, "in_host: the rates are missing", kMeasure);
  out.rates.in_host = read_rate(*in_host, "in_host");
  if (const json::Value* const between = in.find("between_hosts"))
    out.rates.between_hosts = read_rate(*between, "between_hosts");
  out.rates.host_ranks = static_cast<int>(in.number("host_ranks").value_or(0));
  const std::string way = in.word("collectives");
  if (!way.empty() && way != "ring" && way != "own")
    refuse(*in.find("collectives"), "collectives: expected ring or own", "");
  out.collectives = way == "own" ? Collectives::Own : Collectives::Ring;
  out.overlap_tax = in.number("overlap_tax").value_or(0);
  out.step_overhead_s = in.number("step_overhead_s").value_or(0);
  out.uncertainty = in.number("uncertainty").value_or(out.uncertainty);
  if (const json::Value* const tiers = in.find("tiers")) {
    for (const auto& [name, tier] : tiers->members()) {
      Reader rates(tier, "tiers." + name);
      const json::Value *const read = rates.find("read"), *const write = rates.find("write");
      if (read == nullptr || write == nullptr)
        refuse(tier, fmt::format("tiers.{}: read and write are needed", name), kMeasure);
      out.rates.tiers[name] = {read_rate(*read, "tiers." + name + ".read"),
                               read_rate(*write, "tiers." + name + ".write")};
      rates.end();
    }
  }
  in.end();
  return out;
}

json::Value write_machine(const DescribedMachine& machine) {
  json::Value out;
  out["name"] = json::Value::string(machine.name);
  out["title"] = json::Value::string(machine.title);
  out["source"] = json::Value::string(machine.source);
  out["memory_bytes"] = json::Value::number(machine.memory_bytes);
  if (machine.cores > 0) out["cores"] = json::Value::integer(machine.cores);
  if (machine.price_per_hour > 0)
    out["price_per_hour"] = json::Value::number(machine.price_per_hour);
  write_operations(machine, machine.rates.memory, machine.rates.op_overhead_s, out);
  for (const auto& [threads, rates] : machine.of_threads)
    write_operations(
        rates, rates.memory, rates.op_overhead_s, out["threads"][std::to_string(threads)]);
  out["in_host"] = rate_json(machine.rates.in_host);
  if (machine.rates.between_hosts.bytes_per_s > 0)
    out["between_hosts"] = rate_json(machine.rates.between_hosts);
  out["host_ranks"] = json::Value::integer(machine.rates.host_ranks);
  out["collectives"] =
      json::Value::string(machine.collectives == Collectives::Own ? "own" : "ring");
  out["overlap_tax"] = json::Value::number(machine.overlap_tax);
  out["step_overhead_s"] = json::Value::number(machine.step_overhead_s);
  out["uncertainty"] = json::Value::number(machine.uncertainty);
  for (const auto& [name, rates] : machine.rates.tiers) {
    out["tiers"][name]["read"] = rate_json(rates.first);
    out["tiers"][name]["write"] = rate_json(rates.second);
  }
  return out;
}

DescribedMachine with_threads(DescribedMachine machine, int threads) {
  if (machine.cores == 0 || threads <= 0) return machine;
  int measured = machine.cores;
  const auto away = [&](int of) { return std::abs(std::log(static_cast<double>(of) / threads)); };
  for (const auto& [number, rates] : machine.of_threads) {
    if (away(number) < away(measured)) measured = number;
  }
  if (measured != machine.cores) {
    const ThreadRates& rates = machine.of_threads.at(measured);
    static_cast<OperationRates&>(machine) = rates;
    machine.rates.memory = rates.memory;
    machine.rates.op_overhead_s = rates.op_overhead_s;
  }
  const double share = static_cast<double>(std::min(threads, machine.cores)) / measured;
  for (auto& [type, rate] : machine.peak)
    rate *= share;
  machine.rates.memory.bytes_per_s *= share;
  return machine;
}

fs::path measured_file() {
  return files::cache_dir() / "machine.json";
}

std::vector<std::string> machine_names() {
  std::set<std::string> out;
  std::error_code ignored;
  for (const fs::path& folder : folders()) {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
      if (entry.path().extension() == ".json") out.insert(entry.path().stem().string());
    }
  }
  out.erase("networks");
  return {out.begin(), out.end()};
}

DescribedMachine find_machine(const std::string& name) {
  std::error_code ignored;
  if (name == "here") {
    const fs::path file = measured_file();
    TESSERA_REQUIRE(
        fs::exists(file, ignored),
        Config,
        fmt::format("the rates of this machine are not measured: {} does not exist", file.string()),
        "tessera bench machine measures them in less than a minute");
    return read_file(file);
  }
  if (name.ends_with(".json")) return read_file(name);
  for (const fs::path& folder : folders()) {
    const fs::path file = folder / (name + ".json");
    if (name != "networks" && fs::is_regular_file(file, ignored)) return read_file(file);
  }
  std::vector<std::string> known = machine_names();
  known.emplace_back("here");
  throw Error(Error::Kind::Config,
              fmt::format("no machine is described as {}", name),
              text::suggestion(name, known) + " (or give a file of your own, as those in " +
                  machines_of_program().string() + ")");
}

Network find_network(const std::string& name) {
  const fs::path file = machines_of_program() / "networks.json";
  const json::Value all = json::parse(files::read(file), file.string());
  if (const json::Value* const found = all.find(name)) {
    Reader in(*found, name);
    Network out{.name = name,
                .rate = {.latency_s = in.number("latency_s").value_or(0),
                         .bytes_per_s = in.rate("bytes_per_s")},
                .of_host = in.word("of") == "host"};
    in.find("source");
    in.end();
    return out;
  }
  // "400G": this number of gigabits per second for each rank, of which nine tenths carry data.
  if (name.size() > 1 && (name.back() == 'G' || name.back() == 'g')) {
    char* end = nullptr;
    const double gigabits = std::strtod(name.c_str(), &end);
    if (end == name.c_str() + name.size() - 1 && gigabits > 0 && std::isfinite(gigabits))
      return {.name = name, .rate = {.latency_s = 2e-5, .bytes_per_s = 0.9 * gigabits * 1e9 / 8}};
  }
  std::vector<std::string> known;
  for (const auto& [key, value] : all.members())
    known.push_back(key);
  throw Error(Error::Kind::Config,
              fmt::format("--network {}: no such network is known", name),
              text::suggestion(name, known) + " (or give a rate for each rank, such as 400G)");
}

DescribedMachine with_network(DescribedMachine machine, const Network& network) {
  machine.rates.between_hosts = network.rate;
  if (network.of_host && machine.rates.host_ranks > 1)
    machine.rates.between_hosts.bytes_per_s /= machine.rates.host_ranks;
  return machine;
}

}  // namespace tessera::predict
