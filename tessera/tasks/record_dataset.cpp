// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/record_dataset.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <set>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/log.h"
#include "tessera/base/philox.h"
#include "tessera/base/text.h"
#include "tessera/data/mixture.h"
#include "tessera/tasks/mixed_records.h"
#include "tessera/tasks/streamed_records.h"

namespace tessera::tasks {
namespace {

/// `before`: the number of texts before they were combined to samples; 0: they were not.
void require_samples(const data::Dataset& records,
                     std::int64_t wanted,
                     const std::string& what,
                     const char* noun,
                     std::int64_t before = 0) {
  const std::string has =
      records.size() > 0 && before > records.size()
          ? fmt::format("{} {}, which fill {} samples", before, noun, records.size())
          : fmt::format("{} {}", records.size(), noun);
  TESSERA_REQUIRE(records.size() >= wanted,
                  Data,
                  fmt::format("{} has {}; at least {} are needed{}",
                              what,
                              has,
                              wanted,
                              wanted > 1 ? " for a batch" : ""),
                  wanted > 1 ? "use more data, a smaller train_batch_size, or (except in rl) "
                               "data.drop_last false, which also trains on batches that are not "
                               "full"
                             : "use more data");
}

void warn_of(const RecordDataset& records, const std::string& key) {
  if (records.cut() > 0) {
    log::warn_once(
        fmt::format("{}: {} of {} texts are longer than data.sequence_length ({} "
                    "tokens) and lose their end",
                    key,
                    text::with_commas(records.cut()),
                    text::with_commas(records.stats().documents),
                    records.sequence_length().value_or(0)));
  }
  if (records.stats().bad_records > 0) {
    log::warn_once(
        fmt::format("{}: {} of {} records cannot be read and are left out; the first: {}",
                    key,
                    text::with_commas(records.stats().bad_records),
                    text::with_commas(records.stats().documents + records.stats().bad_records),
                    records.refused().front()));
  }
}

std::unique_ptr<RecordDataset> read_and_warn(const std::vector<std::string>& names,
                                             const std::string& key,
                                             data::Split split,
                                             const ReadRecords& read) {
  std::unique_ptr<RecordDataset> records = read(names, split);
  warn_of(*records, key);
  return records;
}

}  // namespace

data::RecordOptions record_options(const data::DataOptions& options, std::string example) {
  data::RecordOptions out{.replace_invalid_utf8 = options.invalid_utf8 == "replace",
                          .skip_bad = options.on_bad_record == "skip",
                          .skip_equal = options.drop_duplicates,
                          .map = {},
                          .map_may_miss = options.map_may_miss,
                          .example = std::move(example)};
  if (options.map.is_null()) return out;
  TESSERA_REQUIRE(
      options.map.is_object(),
      Config,
      fmt::format("{}: data.map is {}", options.map.place.text(), options.map.type_name()),
      "write {\"prompt\": \"question\"}");
  for (const auto& [name, source] : options.map.members()) {
    TESSERA_REQUIRE(source.is_string() && !source.as_string().empty(),
                    Config,
                    fmt::format("{}: data.map.{} is {}",
                                source.place.text(),
                                name,
                                source.is_string() ? "empty" : source.type_name()),
                    "give the name of a field");
    out.map[name] = source.as_string();
  }
  return out;
}

namespace {

// "translation.en" is a member of the object "translation", unless a field has this name itself.
const json::Value* find_field(const json::Value& object, const std::string& field) {
  const json::Value* const found = object.find(field);
  const std::size_t dot = field.find('.');
  if (found != nullptr || dot == field.npos) return found;
  const json::Value* const outer = object.find(field.substr(0, dot));
  if (outer == nullptr || !outer->is_object()) return nullptr;
  return find_field(*outer, field.substr(dot + 1));
}

}  // namespace

const json::Value& field_of(const data::Record& record,
                            const std::string& field,
                            const char* option) {
  const json::Value* const found = find_field(record.value, field);
  if (found != nullptr) return *found;
  std::vector<std::string> names;
  for (const auto& [name, value] : record.value.members())
    names.push_back(name);
  const std::string there = names.empty() ? "none" : text::join(names, ", ");
  record.refuse(
      fmt::format("the record has no \"{}\"", field),
      option == nullptr
          ? fmt::format("its fields are {}: name the one that is meant in data.map", there)
          : fmt::format(
                "its fields are {}: set task.params.{} to the one that is meant", there, option));
}

std::string text_of(const data::Record& record, const std::string& field, const char* option) {
  const json::Value& text = field_of(record, field, option);
  if (record.row && (text.is_number() || text.is_bool())) return text.dump();
  if (!text.is_string() || text.as_string().empty()) {
    record.refuse(text.is_string() ? fmt::format("\"{}\" is empty", field)
                                   : fmt::format("\"{}\" is {}", field, text.type_name()),
                  "give every record a text");
  }
  return text.as_string();
}

std::optional<double> number_in(const data::Record& record, const json::Value& value) {
  double out = 0;
  if (value.is_number()) {
    out = value.as_double();
  } else if (record.row && value.is_string()) {
    const std::string& cell = value.as_string();
    const char* const end = cell.data() + cell.size();
    const auto read = std::from_chars(cell.data(), end, out);
    if (read.ec != std::errc() || read.ptr != end) return std::nullopt;
  } else {
    return std::nullopt;
  }
  if (!std::isfinite(static_cast<float>(out))) return std::nullopt;
  return out;
}

namespace {

// Two hashes of 64 bits, so that different records are taken for equal ones in no practical case.
std::array<std::uint64_t, 2> hashes_of(const json::Value& record) {
  const std::string text = record.dump();
  return {files::xxh3(std::as_bytes(std::span(text))), std::hash<std::string>{}(text)};
}

}  // namespace

void RecordDataset::read_records(const std::vector<std::string>& files,
                                 const data::RecordOptions& options,
                                 const std::function<void()>& poll,
                                 const data::TakeRecord& take) {
  constexpr std::int64_t kPollEvery = 1024;
  std::set<std::array<std::uint64_t, 2>> seen;  // two hashes of each record
  std::int64_t equal = 0;
  const data::RecordCounts counts = for_each_record(files, options, [&](const auto& record) {
    if (poll && stats_.documents % kPollEvery == 0) poll();
    if (options.skip_equal && !seen.insert(hashes_of(record.value)).second) {
      ++equal;
      return;
    }
    take(record);
    accepted_.push_back(record.number);
    ++stats_.documents;
  });
  if (equal > 0)
    log::warn_once(fmt::format("data.drop_duplicates: {} of {} records equal an earlier one",
                               text::with_commas(equal),
                               text::with_commas(counts.records)));
  stats_.skipped_empty += counts.blank;
  stats_.replaced_utf8 += counts.replaced_utf8;
  stats_.bad_records += counts.bad;
  refused_.insert(refused_.end(), counts.refused.begin(), counts.refused.end());
}

void RecordDataset::reorder(const std::vector<std::int64_t>& /*order*/) {
  throw Error(Error::Kind::Unsupported,
              fmt::format("{} keep the order of their files", name()),
              "leave out data.folds");
}

void RecordDataset::count_in(const RecordDataset& other) {
  cut_ += other.cut_;
  stats_ += other.stats_;
  refused_.insert(refused_.end(), other.refused_.begin(), other.refused_.end());
}

std::vector<std::int64_t> record_numbers(const data::Dataset& dataset) {
  const auto* const records = dynamic_cast<const RecordDataset*>(&dataset.in_fixed_order());
  if (records == nullptr || std::ssize(records->accepted()) != dataset.size()) return {};
  return records->accepted();
}

RecordDataset::ClassCounts class_counts_of(const data::Dataset& dataset) {
  const auto* const records = dynamic_cast<const RecordDataset*>(&dataset.in_fixed_order());
  return records != nullptr ? records->class_counts() : RecordDataset::ClassCounts();
}

std::vector<std::int64_t> places_of(const data::Dataset& dataset, std::int64_t index) {
  const auto* const records = dynamic_cast<const RecordDataset*>(&dataset);
  return records != nullptr ? records->places(index) : std::vector<std::int64_t>();
}

void Fingerprint::add(std::string_view part) {
  bytes_ += fmt::format("|{}:", part.size());
  bytes_ += part;
}
void Fingerprint::add(std::int64_t number) {
  bytes_ += fmt::format("|{}", number);
}
void Fingerprint::add(const std::vector<std::int32_t>& numbers) {
  add(std::string_view(reinterpret_cast<const char*>(numbers.data()),
                       numbers.size() * sizeof(std::int32_t)));
}
std::string Fingerprint::text() const {
  return files::hex64(files::xxh3(std::as_bytes(std::span(bytes_))));
}

namespace {

/// The number of samples that data.validation_fraction holds out.
std::int64_t held_out_of(std::int64_t size, const data::DataOptions& options) {
  const auto kept = static_cast<std::int64_t>(
      std::floor(static_cast<double>(size) * (1.0 - options.validation_fraction)));
  return size - kept;
}

/// The samples that are held out: indices in order.
struct HeldOut {
  std::vector<std::int64_t> samples;
  std::string how;  ///< for the fingerprint; empty: the last ones
};

/// One of the folds into which the samples are divided.
HeldOut held_fold(const RecordDataset& part, const data::DataOptions& options, std::uint64_t seed) {
  const std::int64_t folds = options.folds.value_or(1), size = part.size();
  std::vector<std::int64_t> sizes;
  for (std::int64_t fold = 0; fold < folds; ++fold)
    sizes.push_back(size / folds + (fold < size % folds ? 1 : 0));
  LabelsOfSamples labels = part.strata();
  labels.resize(static_cast<std::size_t>(size));
  const std::vector<std::int64_t> fold_of = stratified_parts(labels, sizes, seed);
  HeldOut out{.samples = {}, .how = fmt::format(" fold {} of {} {}", options.fold, folds, seed)};
  for (std::int64_t i = 0; i < size; ++i)
    if (fold_of[static_cast<std::size_t>(i)] == options.fold - 1) out.samples.push_back(i);
  return out;
}

/// data.validation_fraction of the samples.
HeldOut held_fraction(const RecordDataset& part,
                      const data::DataOptions& options,
                      std::uint64_t seed) {
  const std::int64_t size = part.size(), count = held_out_of(size, options);
  HeldOut out;
  const LabelsOfSamples labels = part.strata();
  const bool differ = std::ranges::adjacent_find(labels, std::not_equal_to()) != labels.end();
  if (!differ) {
    for (std::int64_t i = size - count; i < size; ++i)
      out.samples.push_back(i);
    return out;
  }
  out.how = fmt::format(" stratified {}", seed);
  if (std::ranges::all_of(labels, [](const auto& own) { return own.size() == 1; })) {
    std::vector<std::int64_t> classes;
    for (const std::vector<std::int64_t>& own : labels)
      classes.push_back(own.front());
    out.samples = stratified_samples(classes, count, seed);
    return out;
  }
  const auto parts = stratified_parts(labels, {size - count, count}, seed);
  for (std::int64_t i = 0; i < size; ++i)
    if (parts[static_cast<std::size_t>(i)] == 1) out.samples.push_back(i);
  return out;
}

/// Moves the samples that are held out into a separate dataset. `fingerprint` receives how they are
/// chosen.
std::unique_ptr<RecordDataset> hold_out(RecordDataset& part,
                                        const data::DataOptions& options,
                                        std::uint64_t seed,
                                        std::string& fingerprint) {
  const HeldOut held =
      options.folds ? held_fold(part, options, seed) : held_fraction(part, options, seed);
  fingerprint += held.how;
  if (!held.how.empty()) {
    std::vector<std::int64_t> order;
    std::size_t next = 0;
    for (std::int64_t i = 0; i < part.size(); ++i) {
      if (next < held.samples.size() && held.samples[next] == i)
        ++next;
      else
        order.push_back(i);
    }
    order.insert(order.end(), held.samples.begin(), held.samples.end());
    part.reorder(order);
  }
  return part.split_off(std::ssize(held.samples));
}

/// A source of data.train with data.streaming, or the ends of its files, which are held out.
std::unique_ptr<RecordDataset> stream_source(const DataRequest& request,
                                             const ReadRecords& read,
                                             const ListFiles& list,
                                             const std::vector<std::string>& names,
                                             bool held_out) {
  const data::DataOptions& options = request.options;
  const auto open = [read, options, seed = request.seed, held_out](const std::string& file) {
    std::unique_ptr<RecordDataset> samples = read({file}, data::Split::Train);
    if (options.holds_out()) {
      std::string ignored;  // the samples of the file tell which are held out
      auto end = hold_out(*samples, options, seed, ignored);
      if (held_out) samples = std::move(end);
    }
    samples->arrange();
    return samples;
  };
  // Evaluation reads in order, a file after the other.
  return std::make_unique<StreamedRecords>(list(names), open, held_out ? 1 : options.streaming);
}

/// Streams data.train as one dataset, or each of data.sources as one.
std::vector<std::unique_ptr<RecordDataset>> stream_training(const DataRequest& request,
                                                            const ReadRecords& read,
                                                            const ListFiles& list,
                                                            bool held_out = false) {
  std::vector<std::unique_ptr<RecordDataset>> out;
  const std::vector<data::DataSource> sources = data::sources_of(request.options.sources);
  for (const data::DataSource& source : sources)
    out.push_back(stream_source(request, read, list, source.paths, held_out));
  if (out.empty())
    out.push_back(stream_source(request, read, list, request.options.train, held_out));
  for (std::size_t s = 0; !held_out && s < out.size(); ++s)
    warn_of(*out[s], sources.empty() ? "data.train" : sources[s].name());
  return out;
}

/// Reads data.train as one dataset, or each of data.sources as one.
std::vector<std::unique_ptr<RecordDataset>> read_training(const DataRequest& request,
                                                          const ReadRecords& read,
                                                          const ListFiles& list,
                                                          const char* noun) {
  const data::DataOptions& options = request.options;
  if (options.streaming > 0) return stream_training(request, read, list);
  std::vector<std::unique_ptr<RecordDataset>> out;
  for (const data::DataSource& source : data::sources_of(options.sources)) {
    out.push_back(read_and_warn(source.paths, source.name(), data::Split::Train, read));
    require_samples(*out.back(), 1, source.name(), noun);
  }
  if (out.empty())
    out.push_back(read_and_warn(options.train, "data.train", data::Split::Train, read));
  return out;
}

/// The ends of the parts, which are held out. `fingerprint` receives how they are chosen.
std::vector<std::unique_ptr<RecordDataset>> take_tails(
    const std::vector<std::unique_ptr<RecordDataset>>& parts,
    const DataRequest& request,
    const ReadRecords& read,
    const ListFiles& list,
    std::string& fingerprint) {
  if (request.options.streaming > 0) return stream_training(request, read, list, /*held_out=*/true);
  std::vector<std::unique_ptr<RecordDataset>> out;
  for (const auto& part : parts) {
    out.push_back(hold_out(*part, request.options, request.seed, fingerprint));
    out.back()->arrange();
  }
  return out;
}

/// The samples of streamed parts, in the order of `mixture`.
std::unique_ptr<data::Dataset> streamed(std::vector<std::unique_ptr<RecordDataset>> parts,
                                        const std::vector<std::int64_t>& sizes,
                                        data::Mixture mixture,
                                        const DataRequest& request) {
  std::vector<std::unique_ptr<data::StreamOrder>> orders;
  for (std::size_t s = 0; s < parts.size(); ++s) {
    const auto& files = dynamic_cast<const StreamedRecords&>(*parts[s]);
    orders.push_back(std::make_unique<data::StreamOrder>(
        files.file_sizes(),
        data::StreamOptions{
            .shuffle = request.options.shuffle,
            .seed = request.options.sources.is_null() ? request.seed : mix64(request.seed, s + 1),
            .window = request.options.streaming}));
  }
  std::unique_ptr<RecordDataset> all =
      parts.size() == 1
          ? std::move(parts.front())
          : std::make_unique<MixedRecords>(std::move(parts), data::Mixture::joined(sizes));
  return std::make_unique<data::StreamedSamples>(
      std::move(all), std::move(mixture), std::move(orders));
}

/// The training data from arranged parts: the only part, or all of them mixed.
std::unique_ptr<data::Dataset> mixed(std::vector<std::unique_ptr<RecordDataset>> parts,
                                     const DataRequest& request) {
  const data::DataOptions& options = request.options;
  std::vector<std::int64_t> sizes;
  for (const auto& part : parts)
    sizes.push_back(part->size());
  if (options.sources.is_null()) {
    if (options.streaming == 0) return std::move(parts.front());
    return streamed(std::move(parts), sizes, data::Mixture::joined(sizes), request);
  }
  std::vector<double> weights;
  for (const data::DataSource& source : data::sources_of(options.sources))
    weights.push_back(source.weight);
  data::Mixture mixture = data::Mixture::interleaved(sizes, weights, data::mix_until_of(options));
  if (options.streaming > 0) return streamed(std::move(parts), sizes, std::move(mixture), request);
  return std::make_unique<MixedRecords>(std::move(parts), std::move(mixture));
}

}  // namespace

std::vector<std::string> training_files(const std::vector<std::string>& names) {
  return data::record_files(names, data::Split::Train);
}

data::Datasets open_records(const DataRequest& request,
                            const ReadRecords& read,
                            const char* noun,
                            const ListFiles& list) {
  const data::DataOptions& options = request.options;
  TESSERA_REQUIRE(options.validation.empty() || !options.holds_out(),
                  Config,
                  "data.validation is given, and a part of data.train is held out as well",
                  "keep data.validation (other data), or data.validation_fraction or data.folds");
  std::vector<std::unique_ptr<RecordDataset>> parts = read_training(request, read, list, noun),
                                              tails;
  data::Datasets out;
  for (const auto& part : parts) {
    out.fingerprint += part->fingerprint() + " ";
    out.train_stats += part->stats();
  }
  for (const data::DataSource& source : data::sources_of(options.sources))
    out.fingerprint += text::number(source.weight) + " ";
  if (!options.sources.is_null()) out.fingerprint += options.mix_until + " ";
  out.fingerprint +=
      fmt::format("{} {}", options.shuffle, text::number(options.validation_fraction));
  if (options.holds_out()) {
    std::vector<std::int64_t> sizes;
    for (std::unique_ptr<RecordDataset>& tail :
         take_tails(parts, request, read, list, out.fingerprint)) {
      out.validation_tokens += tail->tokens();
      if (tail->size() == 0 && parts.size() > 1) continue;
      sizes.push_back(tail->size());
      tails.push_back(std::move(tail));
    }
    std::unique_ptr<RecordDataset> validation;
    if (tails.size() == 1) {
      validation = std::move(tails.front());
    } else if (!tails.empty()) {
      validation = std::make_unique<MixedRecords>(std::move(tails), data::Mixture::joined(sizes));
    }
    TESSERA_REQUIRE(validation != nullptr,
                    Data,
                    fmt::format("the tail of data.sources has no {}", noun),
                    "raise data.validation_fraction, or name data.validation");
    require_samples(*validation, 1, "the tail of data.train", noun);
    out.validation = std::move(validation);
  } else if (!options.validation.empty()) {
    std::unique_ptr<RecordDataset> validation =
        read_and_warn(options.validation, "data.validation", data::Split::Validation, read);
    validation->arrange();
    require_samples(*validation, 1, "data.validation", noun);
    out.validation_tokens = validation->tokens();
    out.validation_stats = validation->stats();
    out.validation_fingerprint = validation->fingerprint();
    out.validation = std::move(validation);
  }
  std::int64_t texts = 0;
  for (const auto& part : parts) {
    texts += options.sources.is_null() ? part->size() : 0;
    part->arrange();
    if (parts.size() > 1) require_samples(*part, 1, "a source of data.sources", noun);
    out.train_tokens += part->tokens();
  }
  std::unique_ptr<data::Dataset> train = mixed(std::move(parts), request);
  require_samples(*train, request.min_samples, "data.train", noun, texts);
  out.train = std::move(train);
  return out;
}

data::OpenedDataset open_held_out_records(const std::vector<std::string>& names,
                                          const std::string& key,
                                          const ReadRecords& read,
                                          const char* noun) {
  const data::Split split = key == "data.test" ? data::Split::Test : data::Split::Validation;
  std::unique_ptr<RecordDataset> records = read_and_warn(names, key, split, read);
  records->arrange();
  require_samples(*records, 1, key, noun);
  data::OpenedDataset out;
  out.tokens = records->tokens();
  out.stats = records->stats();
  out.fingerprint = records->fingerprint();
  out.dataset = std::move(records);
  return out;
}

}  // namespace tessera::tasks
