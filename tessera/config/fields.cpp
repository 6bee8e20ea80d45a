// SPDX-License-Identifier: Apache-2.0
#include "tessera/config/fields.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/budget.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::config {
namespace {

std::string brief(const json::Value& value) {
  std::string text = value.dump();
  constexpr std::size_t kMost = 40;
  if (text.size() <= kMost) return text;
  text.resize(kMost);
  text.resize(kMost - text::incomplete_utf8_tail(text));
  return text + "...";
}

std::string found(const json::Value& value) {
  if (value.is_null() || value.is_object()) return std::string(value.type_name());
  return std::string(value.is_bool() ? "" : value.type_name()) + (value.is_bool() ? "" : " ") +
         brief(value);
}

std::string unit_of(const Doc& doc) {
  return doc.unit.empty() ? "" : " " + doc.unit;
}

// The reader: a stack of the open objects, each with the keys that describe() has requested.
class Reader : public Fields {
 public:
  Reader(const json::Value& source, Problems& problems, Origins& origins)
      : problems_(problems), origins_(origins) {
    origins_.note("", source.place);
    frames_.push_back(frame("", &source, /*broken=*/false));
  }

  using Fields::field;
  void field(std::string_view key, Slot slot, const Doc& doc) override {
    const std::string path = json::join_path(frames_.back().path, key);
    const json::Value* value = take(key);
    if (value == nullptr) {
      // A value that is not an object has been reported already.
      if (doc.required && !frames_.back().broken)
        problems_.add(frame_place(), path, "is missing", doc.text, Problems::Kind::Missing);
      return;
    }
    origins_.note_all(path, *value);
    std::visit([&](auto* member) { assign(member, *value, path, doc); }, slot);
  }

  void begin(std::string_view key, std::string_view) override {
    const json::Value* value = take(key);
    const Frame& around = frames_.back();
    frames_.push_back(frame(json::join_path(around.path, key), value, around.broken));
    if (value != nullptr) origins_.note(frames_.back().path, value->place);
  }

  void end() override {
    close();
    frames_.pop_back();
  }

  // All keys are known at this point.
  void finish() {
    close();
    for (const Unknown& unknown : unknown_) {
      const json::Value& value = *unknown.value;
      problems_.add(value.key_place.source.empty() ? value.place : value.key_place,
                    json::join_path(unknown.section, unknown.key),
                    "unknown key",
                    unknown_key_fix(unknown.key, unknown.known, paths_),
                    Problems::Kind::Unknown);
    }
    if (untold_ > 0)
      problems_.add(first_untold_->place,
                    "",
                    fmt::format("{} more unknown keys", untold_),
                    "look at the whole file: is it a configuration of tessera?",
                    Problems::Kind::Unknown);
  }

 private:
  struct Frame {
    std::string path;
    const json::Value* object;  // nullptr: absent
    const json::Value* wrong;   // a value of another type in its place; nullptr: none
    bool broken;                // this object or one around it is wrong
    std::vector<std::string> known;
  };

  struct Unknown {
    std::string section, key;
    const json::Value* value;
    std::vector<std::string> known;  // keys of its section
  };

  static Frame frame(std::string path, const json::Value* value, bool broken) {
    const bool fits = value == nullptr || value->is_object();
    return {std::move(path), fits ? value : nullptr, fits ? nullptr : value, broken || !fits, {}};
  }

  // Returns nullptr for an absent key and for null, which means "not given".
  const json::Value* take(std::string_view key) {
    Frame& frame = frames_.back();
    frame.known.emplace_back(key);
    paths_.push_back(json::join_path(frame.path, key));
    const json::Value* value = frame.object == nullptr ? nullptr : frame.object->find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }

  // Returns the place of the open object, or of the nearest enclosing object in the source.
  [[nodiscard]] json::Place frame_place() const { return origins_.place(frames_.back().path); }

  // The keys of the innermost object are all known at this point.
  void close() {
    const Frame& frame = frames_.back();
    if (frame.wrong != nullptr)
      report_not_an_object(*frame.wrong, frame.path, frame.known, problems_);
    if (frame.object == nullptr) return;
    for (const auto& [key, value] : frame.object->members()) {
      if (std::find(frame.known.begin(), frame.known.end(), key) != frame.known.end()) continue;
      if (unknown_.size() < budget::kProblems) {
        unknown_.push_back({frame.path, key, &value, frame.known});
      } else if (++untold_ == 1) {
        first_untold_ = &value;
      }
    }
  }

  // `fix`: what to type if the value is not "auto".
  void mismatch(const json::Value& value,
                const std::string& path,
                const std::string& expected,
                std::string fix) {
    if (value.is_string() && value.as_string() == "auto")
      fix = "\"auto\" is not allowed for this key: remove it to get the default";
    problems_.add(
        value.place, path, "expected " + expected + ", found " + found(value), std::move(fix));
  }

  /// Formats a limit; whole numbers with all of their digits, as users type them.
  static std::string limit(double value) {
    constexpr double kExact = 1e15;
    if (value != std::floor(value) || std::abs(value) > kExact) return text::number(value);
    return std::to_string(static_cast<std::int64_t>(value));
  }

  bool in_range(double number, const json::Value& value, const std::string& path, const Doc& doc) {
    const bool low = number < doc.min || (doc.above_min && number == doc.min);
    if (!low && number <= doc.max) return true;
    const std::string bound = low ? (doc.above_min ? "more than " : "at least ") + limit(doc.min)
                                  : "at most " + limit(doc.max);
    const double nearest = low ? doc.min : doc.max;
    const bool allowed = !(low && doc.above_min);
    problems_.add(
        value.place,
        path,
        "expected " + bound + unit_of(doc) + ", found " + brief(value),
        allowed ? "set it to " + limit(nearest) : "choose a number above " + limit(nearest));
    return false;
  }

  // Returns an example: the number inside the quotes, or one that the key allows (its default if
  // known).
  template <class T>
  static std::string number_fix(const json::Value& value,
                                std::string_view kind,
                                T standard,
                                const Doc& doc) {
    const bool whole = std::is_integral_v<T>;
    if (value.is_string()) {
      double hidden = 0;
      const std::string_view text = text::trim(value.as_string());
      const auto read = std::from_chars(text.data(), text.data() + text.size(), hidden);
      const bool all = read.ec == std::errc() && read.ptr == text.data() + text.size();
      const bool fits = hidden >= doc.min && hidden <= doc.max && std::isfinite(hidden);
      if (all && fits && (!whole || hidden == std::floor(hidden)))
        return fmt::format("write {}, without quotes", text::number(hidden));
    }
    double example = std::clamp(static_cast<double>(standard), doc.min, doc.max);
    constexpr double kSane = 1e9;
    if (whole && value.is_number() && std::abs(value.as_double()) < kSane)
      example = std::clamp(std::floor(value.as_double()), doc.min, doc.max);
    if (doc.above_min && example == doc.min) example = std::min(doc.min + 1, doc.max);
    return fmt::format("write {}, such as {}", kind, text::number(example));
  }
  static std::string string_fix(const json::Value& value, const Doc& doc) {
    if (!doc.choices.empty())
      return fmt::format("choose one of: \"{}\"", text::join(doc.choices, "\", \""));
    const bool plain = value.is_bool() || value.is_number();
    return plain ? fmt::format("write \"{}\", in double quotes", value.dump())
                 : "write a string in double quotes";
  }
  static std::string array_fix(const json::Value& value, const std::vector<double>& standard) {
    if (value.is_number()) return fmt::format("write [{}]", value.dump());
    std::vector<std::string> words;
    for (const double number : standard)
      words.push_back(text::number(number));
    return fmt::format("write a list, such as [{}]",
                       words.empty() ? "1, 2" : text::join(words, ", "));
  }

  void assign(bool* member, const json::Value& value, const std::string& path, const Doc&) {
    if (!value.is_bool()) return mismatch(value, path, "true or false", "write true or false");
    *member = value.as_bool();
  }

  void assign(std::int64_t* member,
              const json::Value& value,
              const std::string& path,
              const Doc& doc) {
    const auto integer = value.is_number() ? value.as_integer() : std::nullopt;
    if (!integer)
      return mismatch(value, path, "an integer", number_fix(value, "an integer", *member, doc));
    if (in_range(static_cast<double>(*integer), value, path, doc)) *member = *integer;
  }

  void assign(double* member, const json::Value& value, const std::string& path, const Doc& doc) {
    if (!value.is_number())
      return mismatch(value, path, "a number", number_fix(value, "a number", *member, doc));
    if (in_range(value.as_double(), value, path, doc)) *member = value.as_double();
  }

  void assign(std::string* member,
              const json::Value& value,
              const std::string& path,
              const Doc& doc) {
    if (!value.is_string()) return mismatch(value, path, "a string", string_fix(value, doc));
    const std::string& text = value.as_string();
    if (text.find('\0') != std::string::npos) {  // a path would end there
      problems_.add(value.place, path, "has the character U+0000", "remove \\u0000");
      return;
    }
    if (!doc.choices.empty() &&
        std::find(doc.choices.begin(), doc.choices.end(), text) == doc.choices.end()) {
      problems_.add(
          value.place, path, "unknown value " + brief(value), text::suggestion(text, doc.choices));
      return;
    }
    *member = text;
  }

  void assign(std::vector<double>* member,
              const json::Value& value,
              const std::string& path,
              const Doc& doc) {
    if (!value.is_array())
      return mismatch(value, path, "an array of numbers", array_fix(value, *member));
    assign_items(member, value, path, doc);
  }

  void assign(std::vector<std::string>* member,
              const json::Value& value,
              const std::string& path,
              const Doc& doc) {
    if (value.is_string()) {
      std::string one;
      assign(&one, value, path, doc);
      *member = {one};
      return;
    }
    if (!value.is_array())
      return mismatch(
          value, path, "a string or an array of strings", "write a list: [\"one\", \"two\"]");
    assign_items(member, value, path, doc);
  }

  template <class T>
  void assign_items(std::vector<T>* member,
                    const json::Value& value,
                    const std::string& path,
                    const Doc& doc) {
    member->clear();
    for (std::size_t i = 0; i < value.items().size(); ++i) {
      T item{};
      assign(&item, value.items()[i], path + "[" + std::to_string(i) + "]", doc);
      member->push_back(item);
    }
  }

  template <class T>
  void assign(std::optional<T>* member,
              const json::Value& value,
              const std::string& path,
              const Doc& doc) {
    T read{};
    const std::size_t before = problems_.list().size();
    assign(&read, value, path, doc);
    if (problems_.list().size() == before) *member = std::move(read);
  }

  void assign(json::Value* member, const json::Value& value, const std::string&, const Doc&) {
    *member = value;
  }

  Problems& problems_;
  Origins& origins_;
  std::vector<Frame> frames_;
  std::vector<std::string> paths_;  // all paths that describe() requested
  std::vector<Unknown> unknown_;    // at most budget::kProblems
  std::size_t untold_ = 0;          // further ones
  const json::Value* first_untold_ = nullptr;
};

// The writer: a stack of the objects that are being filled.
class Writer : public Fields {
 public:
  using Fields::field;
  void field(std::string_view key, Slot slot, const Doc&) override {
    std::visit([&](auto* member) { put(key, *member); }, slot);
  }
  void begin(std::string_view key, std::string_view) override {
    keys_.emplace_back(key);
    objects_.push_back(json::Value::object());
  }
  void end() override {
    json::Value inner = std::move(objects_.back());
    objects_.pop_back();
    objects_.back()[keys_.back()] = std::move(inner);
    keys_.pop_back();
  }
  json::Value finish() { return std::move(objects_.front()); }

 private:
  static json::Value of(bool value) { return json::Value::boolean(value); }
  static json::Value of(std::int64_t value) { return json::Value::integer(value); }
  static json::Value of(double value) { return json::Value::number(value); }
  static json::Value of(const std::string& value) { return json::Value::string(value); }
  static json::Value of(const json::Value& value) { return value; }
  template <class T>
  static json::Value of(const std::vector<T>& values) {
    json::Value out = json::Value::array();
    for (const T& value : values)
      out.push_back(of(value));
    return out;
  }

  template <class T>
  void put(std::string_view key, const T& value) {
    objects_.back()[key] = of(value);
  }
  template <class T>
  void put(std::string_view key, const std::optional<T>& value) {
    if (value) put(key, *value);
  }

  std::vector<json::Value> objects_{json::Value::object()};
  std::vector<std::string> keys_;
};

// Names that other systems use for keys, and names that only exist inside params.
constexpr auto kOtherNames = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"per_device_train_batch_size", "train_micro_batch_size_per_gpu"},
    {"max_grad_norm", "gradient_clipping"},
    {"clip_grad_norm", "gradient_clipping"},
    {"lr_scheduler", "scheduler"},
    {"lr", "optimizer.params.lr"},
    {"learning_rate", "optimizer.params.lr"},
    {"betas", "optimizer.params.betas"},
    {"eps", "optimizer.params.eps"},
    {"weight_decay", "optimizer.params.weight_decay"},
    {"warmup_num_steps", "scheduler.params.warmup_num_steps"},
    {"total_num_steps", "scheduler.params.total_num_steps"},
    {"n_layer", "model.num_layers"},
    {"n_head", "model.num_heads"},
    {"n_embd", "model.hidden_size"},
    {"n_positions", "model.max_positions"},
    {"block_size", "model.max_positions"},
});

std::string_view last_of(std::string_view path) {
  return path.substr(path.rfind('.') + 1);
}

// The key that a scalar in place of an object stands for.
constexpr auto kShortFor =
    std::to_array<std::pair<bool (json::Value::*)() const, std::string_view>>({
        {&json::Value::is_bool, "enabled"},
        {&json::Value::is_string, "type"},
        {&json::Value::is_string, "preset"},
        {&json::Value::is_string, "train"},
        {&json::Value::is_string, "dir"},
        {&json::Value::is_number, "stage"},
        {&json::Value::is_number, "every"},
    });

std::string line_of(const Problems::Problem& problem) {
  std::string out = problem.place.text();
  if (!out.empty()) out += ": ";
  if (!problem.path.empty()) out += problem.path + ": ";
  return out + problem.what;
}

}  // namespace

void Fields::choice(std::string_view key, const ChoiceSlot& slot, Doc doc) {
  doc.choices = slot.names;
  std::optional<std::string> word = slot.read();
  if (slot.optional) {
    field(key, Slot(&word), doc);
  } else {
    field(key, Slot(&word.value()), doc);
  }
  if (word && word != slot.read()) slot.set(*word);
}

void Problems::add(
    const json::Place& place, std::string path, std::string what, std::string fix, Kind kind) {
  list_.push_back({place, std::move(path), std::move(what), std::move(fix), kind});
}

bool Problems::concern(std::string_view path) const {
  return std::any_of(list_.begin(), list_.end(), [&](const Problem& problem) {
    const std::string& at = problem.path;
    return !at.empty() && path.starts_with(at) &&
           (path.size() == at.size() || path[at.size()] == '.');
  });
}

void Problems::adopt(const Problems& part, std::string_view path) {
  for (Problem problem : part.list_) {
    problem.path = problem.path.empty() ? std::string(path) : json::join_path(path, problem.path);
    list_.push_back(std::move(problem));
  }
}

void Problems::raise() const {
  if (list_.empty()) return;
  if (list_.size() == 1)
    throw Error(Error::Kind::Config, line_of(list_.front()), list_.front().fix);
  std::vector<Problem> sorted = list_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const Problem& a, const Problem& b) {
    return std::pair(a.place.line, a.place.column) < std::pair(b.place.line, b.place.column);
  });
  std::string what = std::to_string(sorted.size()) + " problems in the configuration:";
  // Unknown keys have had their limit already; this one is for all problems together.
  const std::size_t shown = std::min(sorted.size(), 2 * budget::kProblems);
  for (std::size_t i = 0; i < shown; ++i) {
    what += "\n  " + line_of(sorted[i]);
    if (!sorted[i].fix.empty()) what += "\n    fix: " + sorted[i].fix;
  }
  if (shown < sorted.size()) what += fmt::format("\n  and {} others", sorted.size() - shown);
  throw Error(Error::Kind::Config, what);
}

std::string unknown_key_fix(std::string_view key,
                            std::span<const std::string> known,
                            std::span<const std::string> all) {
  const std::string_view trimmed = text::trim(key);
  const auto has = [](std::span<const std::string> names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (trimmed != key && has(known, trimmed))
    return fmt::format("remove the space: \"{}\"", trimmed);
  for (const auto& [name, path] : kOtherNames) {
    if (trimmed != name) continue;
    if (has(known, last_of(path))) return fmt::format("did you mean \"{}\"?", last_of(path));
    // Parameter names are known to optimizers and schedules only.
    const bool is_parameter = has(all, path.substr(0, path.rfind('.')));
    if (has(all, path) || is_parameter) return fmt::format("did you mean {}?", path);
  }
  std::vector<std::string> elsewhere;
  std::copy_if(all.begin(), all.end(), std::back_inserter(elsewhere), [&](const auto& path) {
    return last_of(path) == trimmed;
  });
  constexpr std::size_t kFew = 3;  // a name that more objects have is ambiguous
  if (!elsewhere.empty() && elsewhere.size() <= kFew)
    return fmt::format("did you mean {}?", text::join(elsewhere, " or "));
  return known.empty() ? "remove it: no key is expected here" : text::suggestion(trimmed, known);
}

void report_not_an_object(const json::Value& value,
                          const std::string& path,
                          std::span<const std::string> keys,
                          Problems& problems) {
  std::string fix = "write {\"key\": value, ...}";
  for (const auto& [is, key] : kShortFor) {
    if ((value.*is)() && std::find(keys.begin(), keys.end(), key) != keys.end()) {
      fix = fmt::format("write {{\"{}\": {}}}", key, value.dump());
      break;
    }
  }
  problems.add(value.place, path, "expected an object, found " + found(value), std::move(fix));
}

void Origins::note(std::string path, json::Place place) {
  list_.emplace_back(std::move(path), std::move(place));
}

void Origins::note_all(const std::string& path, const json::Value& value) {
  note(path, value.place);
  if (!value.is_object()) return;
  for (const auto& [key, member] : value.members())
    note_all(json::join_path(path, key), member);
}

bool Origins::given(std::string_view path) const {
  return std::any_of(
      list_.begin(), list_.end(), [&](const auto& entry) { return entry.first == path; });
}

json::Place Origins::place(std::string_view path) const {
  for (;;) {
    const auto it = std::find_if(
        list_.begin(), list_.end(), [&](const auto& entry) { return entry.first == path; });
    if (it != list_.end()) return it->second;
    if (path.empty()) return {};
    const std::size_t dot = path.rfind('.');
    path = dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
  }
}

namespace detail {

void read_fields(const json::Value& source,
                 void (*describe)(void*, Fields&),
                 void* options,
                 Problems& problems,
                 Origins& origins) {
  Reader reader(source, problems, origins);
  describe(options, reader);
  reader.finish();
}

json::Value write_fields(void (*describe)(void*, Fields&), void* options) {
  Writer writer;
  describe(options, writer);
  return writer.finish();
}

}  // namespace detail
}  // namespace tessera::config
