// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/options.h"

#include <map>
#include <type_traits>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/models/family.h"

namespace tessera::models {
namespace {

template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};

/// The members of the options by key ("moe.top_k" in a section), as describe() lists them.
class Slots final : public config::Fields {
 public:
  explicit Slots(FamilyOptions& options) { options.describe(*this); }

  using Fields::field;
  void field(std::string_view key, config::Slot slot, const config::Doc&) override {
    slots_.emplace(json::join_path(section_, key), slot);
  }
  /// No family has such a field yet; its slot would not outlive the visit.
  void choice(std::string_view, const config::ChoiceSlot&, config::Doc) override {
    TESSERA_ASSERT(false);
  }
  void begin(std::string_view key, std::string_view) override {
    section_ = json::join_path(section_, key);
  }
  void end() override {
    const std::size_t dot = section_.rfind('.');
    section_.resize(dot == std::string::npos ? 0 : dot);
  }

  [[nodiscard]] const std::map<std::string, config::Slot, std::less<>>& all() const {
    return slots_;
  }
  [[nodiscard]] bool contains(std::string_view key) const { return slots_.count(key) > 0; }
  [[nodiscard]] bool has_value(std::string_view key) const {
    const auto has = [](const auto* member) {
      if constexpr (IsOptional<std::remove_cvref_t<decltype(*member)>>::value)
        return member->has_value();
      return true;
    };
    return contains(key) && std::visit(has, slots_.find(key)->second);
  }
  void clear(std::string_view key) {
    const auto clear = [](auto* member) {
      if constexpr (IsOptional<std::remove_cvref_t<decltype(*member)>>::value) member->reset();
    };
    std::visit(clear, slots_.find(key)->second);
  }
  void assign(std::string_view key, const Slots& from) {
    const auto assign = [&](auto* member) {
      *member = *std::get<std::remove_cvref_t<decltype(member)>>(from.slots_.find(key)->second);
    };
    std::visit(assign, slots_.find(key)->second);
  }
  void set(const PresetValue& of_preset) {
    const auto found = slots_.find(of_preset.key);
    TESSERA_ASSERT(found != slots_.end());
    std::visit(
        [](auto* member, const auto& value) {
          using Member = std::remove_reference_t<decltype(*member)>;
          using Value = std::remove_cvref_t<decltype(value)>;
          constexpr bool kSame =
              std::is_same_v<Member, Value> || std::is_same_v<Member, std::optional<Value>>;
          TESSERA_ASSERT(kSame);
          if constexpr (kSame) *member = value;
        },
        found->second,
        of_preset.value);
  }
  /// True if both have the key, with values of one type.
  [[nodiscard]] bool alike(std::string_view key, const Slots& other) const {
    const auto ours = slots_.find(key), theirs = other.slots_.find(key);
    return ours != slots_.end() && theirs != other.slots_.end() &&
           ours->second.index() == theirs->second.index();
  }
  [[nodiscard]] bool equal(std::string_view key, const Slots& other) const {
    const auto equal = [&](const auto* member) {
      using Member = std::remove_const_t<std::remove_pointer_t<decltype(member)>>;
      return *member == **std::get_if<Member*>(&other.slots_.find(key)->second);
    };
    return alike(key, other) && std::visit(equal, slots_.find(key)->second);
  }

 private:
  std::string section_;  ///< path of the section that is visited
  std::map<std::string, config::Slot, std::less<>> slots_;
};

const std::vector<PresetValue>& values_of(const std::string& family,
                                          const std::optional<std::string>& preset) {
  static const std::vector<PresetValue> none;
  for (const Preset& one : families().get(family).presets) {
    if (one.name == preset) return one.values;
  }
  return none;
}

void set_values(FamilyOptions& options, const std::vector<PresetValue>& values) {
  if (values.empty()) return;
  Slots slots(options);
  for (const PresetValue& value : values)
    slots.set(value);
}

/// Passes the fields on, and writes the values of a preset to the options as soon as one is read.
class PresetReader final : public config::Fields {
 public:
  PresetReader(config::Fields& to, const std::string& family, FamilyOptions& options)
      : to_(to), family_(family), options_(options) {}

  using Fields::field;
  void field(std::string_view key, config::Slot slot, const config::Doc& doc) override {
    const std::optional<std::string> before = options_.preset;
    to_.field(key, slot, doc);
    if (options_.preset != before) set_values(options_, values_of(family_, options_.preset));
  }
  void begin(std::string_view key, std::string_view sentence) override { to_.begin(key, sentence); }
  void end() override { to_.end(); }

 private:
  config::Fields& to_;
  const std::string& family_;
  FamilyOptions& options_;
};

}  // namespace

// Upper bounds keep products of sizes within 64 bits; they are beyond any published model.
void FamilyOptions::describe_sizes(config::Fields& fields, const SizeTexts& texts) {
  fields.field(
      "preset",
      preset,
      {.text = "Named model: its sizes, and its values of other keys; keys that are given override "
               "them.",
       .choices = texts.presets,
       .default_text = texts.preset_default});
  fields.field("num_layers",
               num_layers,
               {.text = "Number of transformer layers.",
                .min = 1,
                .max = 10'000,
                .default_text = "from the preset"});
  fields.field("hidden_size",
               hidden_size,
               {.text = "Width of the residual stream.",
                .min = 1,
                .max = 1e6,
                .default_text = "from the preset"});
  fields.field("num_heads",
               num_heads,
               {.text = "Number of attention heads; must divide hidden_size.",
                .min = 1,
                .max = 1e6,
                .default_text = "from the preset"});
  fields.field(
      "num_kv_heads",
      num_kv_heads,
      {.text = "Number of key/value heads (grouped-query attention); must divide num_heads.",
       .min = 1,
       .max = 1e6,
       .default_text = "num_heads"});
  fields.field(
      "vocab_size",
      vocab_size,
      {.text = "Number of rows of the token embedding; those beyond the tokenizer's ids are "
               "trained and never "
               "generated.",
       .unit = "tokens",
       .min = 1,
       .max = 1e8,
       .default_text = "of a preset that is given and has no fewer than the tokenizer, else the "
                       "tokenizer's size "
                       "rounded up to a multiple of 64; the folder's with model.from"});
  fields.field("max_positions",
               max_positions,
               {.text = "Maximum sequence length of the model.",
                .unit = "tokens",
                .min = 1,
                .max = 1e8,
                .default_text = texts.positions_default});
  fields.field("ffn_hidden_size",
               ffn_hidden_size,
               {.text = "Hidden width of the MLP.",
                .min = 1,
                .max = 1e7,
                .default_text = texts.ffn_default});
}

void FamilyOptions::describe_dropout(config::Fields& fields, std::string text) {
  fields.field("dropout", dropout, {.text = std::move(text), .min = 0, .max = kMaxDropout});
}

void FamilyOptions::describe_classifier_dropout(config::Fields& fields,
                                                std::optional<double>& probability,
                                                std::string otherwise) {
  fields.field("classifier_dropout",
               probability,
               {.text = "Dropout probability in the head of token classification.",
                .min = 0,
                .max = kMaxDropout,
                .default_text = std::move(otherwise)});
}

void FamilyOptions::describe_tie(config::Fields& fields) {
  fields.field("tie_embeddings",
               tie_embeddings,
               {.text = "Whether the output head shares its weight with the token embedding."});
}

void FamilyOptions::describe_init(config::Fields& fields, std::string text) {
  fields.field("init_std", init_std, {.text = std::move(text), .min = 0, .max = 100});
}

void FamilyOptions::describe_label_smoothing(config::Fields& fields) {
  fields.field("label_smoothing",
               label_smoothing,
               {.text = "Label smoothing: fraction of the target distributed over the vocabulary, "
                        "in training only.",
                .min = 0,
                .max = 1});
}

void FamilyOptions::describe_from(config::Fields& fields) {
  fields.field(
      "from",
      from,
      {.text = "Hugging Face folder, run or checkpoint from which weights and shape are loaded."});
  fields.field(
      "new_weights",
      new_weights,
      {.text = "Take only the shape and the tokenizer of `from`, and begin with new random "
               "weights."});
}

ModelOptions::ModelOptions() : ModelOptions(default_family()) {}

ModelOptions::ModelOptions(std::string_view family)
    : ModelOptions(std::string(family), families().get(family).options()) {}

ModelOptions::ModelOptions(std::string family, std::unique_ptr<FamilyOptions> options)
    : family_(std::move(family)), options_(std::move(options)) {}

ModelOptions::ModelOptions(const ModelOptions& other)
    : family_(other.family_), options_(other.options_->clone()) {}

ModelOptions& ModelOptions::operator=(const ModelOptions& other) {
  if (this != &other) *this = ModelOptions(other);
  return *this;
}

void ModelOptions::choose_preset(std::string_view name) {
  const std::unique_ptr<FamilyOptions> defaults = families().get(family_).options();
  Slots ours(*options_), fresh(*defaults);
  for (const PresetValue& value : values_of(family_, options_->preset))
    ours.assign(value.key, fresh);
  options_->preset = std::string(name);
  options_->num_layers = options_->hidden_size = options_->num_heads = options_->num_kv_heads =
      options_->ffn_hidden_size = std::nullopt;
  set_values(*options_, values_of(family_, options_->preset));
}

bool ModelOptions::has(std::string_view key) const {
  const std::unique_ptr<FamilyOptions> copy = options_->clone();
  return Slots(*copy).has_value(key);
}

void ModelOptions::describe(config::Fields& fields) {
  const std::string before = family_;
  fields.field(
      "family",
      family_,
      {.text = "Model family, by its Hugging Face model_type.", .choices = families().names()});
  if (family_ != before) options_ = families().get(family_).options();
  PresetReader reader(fields, family_, *options_);
  options_->describe(reader);
}

ModelOptions merge_options(const ModelOptions& given,
                           ModelOptions source,
                           config::Problems& problems,
                           const config::Origins& origins) {
  const auto path_of = [](std::string_view key) { return fmt::format("model.{}", key); };
  const std::optional<std::int64_t> positions = source->max_positions;
  const auto contradicts = [&](const std::string& path) {
    problems.add(
        origins.place(path),
        path,
        fmt::format("{} differs from the folder that model.from names", path),
        path == path_of("max_positions") && positions
            ? fmt::format("leave it out, and set data.sequence_length to {} or less", *positions)
            : "leave it out");
  };
  if (origins.given("model.family") && given.family() != source.family())
    contradicts("model.family");
  ModelOptions read = given;
  Slots ours(*read), theirs(*source);
  const std::vector<Adjustable>& adjustable = families().get(source.family()).adjustable;
  std::map<std::string, const Adjustable*, std::less<>> free;
  for (const Adjustable& key : adjustable)
    free.emplace(key.key, &key);
  // A key that resets others is read before them.
  for (const Adjustable& key : adjustable) {
    if (!origins.given(path_of(key.key)) || !ours.alike(key.key, theirs)) continue;
    for (const std::string& reset : key.resets)
      theirs.clear(reset);
    theirs.assign(key.key, ours);
  }
  for (const auto& [key, slot] : ours.all()) {
    const std::string path = path_of(key);
    if (key == "from" || key == "new_weights" || free.count(key) > 0 || !origins.given(path))
      continue;
    if (!ours.equal(key, theirs)) contradicts(path);
  }
  source->from = given->from;
  source->new_weights = given->new_weights;
  return source;
}

}  // namespace tessera::models
