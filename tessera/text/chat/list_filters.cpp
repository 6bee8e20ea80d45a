// SPDX-License-Identifier: Apache-2.0
// Filters for lists and dictionaries.
#include <algorithm>
#include <charconv>

#include "tessera/base/text.h"
#include "tessera/text/chat/interpreter.h"
#include "tessera/text/chat/python_text.h"

namespace tessera::text::chat {
namespace {

using Of = Interpreter;

/// Follows a path such as "a.b.0" from a value; returns the value itself without a path.
Value by_path(Of& in, const Value& value, const Value* path) {
  if (path == nullptr || path->is_none()) return value;
  if (path->is_integral()) return in.item(value, *path);
  Value out = value;
  for (const std::string& part : text::split(need_text(*path, "an attribute"), '.')) {
    std::int64_t index = 0;
    const auto read = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number = !part.empty() && read.ptr == part.data() + part.size() &&
                        read.ec == std::errc() && part[0] != '-';
    out = in.item(out, number ? Value::integer(index) : in.text(part));
  }
  return out;
}

/// The sort key: text is compared case-insensitively by default.
Value sort_key(Of& in, const Value& value, bool case_sensitive) {
  return !case_sensitive && value.is_text() ? in.text(lower(value.as_text())) : value;
}

void sort_by(Of& in, std::vector<std::pair<Value, Value>>& keyed, bool reverse) {
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? less(b.first, a.first, in.budget()) : less(a.first, b.first, in.budget());
  });
}

bool truth(const Value* value) {
  return value != nullptr && value->truth();
}

Value defaulted(Of& in, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind("default", {"default_value", "boolean"});
  if (!value.is_undefined() && (!truth(bound[1]) || value.truth())) return value;
  return bound[0] == nullptr ? in.text("") : *bound[0];
}

Value length(Of& in, const Value& value, const Arguments& arguments) {
  arguments.expect_none("length");
  if (value.is_text()) in.budget().bytes(value.as_text().size());
  return Value::integer(length_of(value));
}

Value joined(Of& in, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind("join", {"d", "attribute"});
  const std::string separator = bound[0] == nullptr ? "" : to_text(*bound[0], in.budget());
  std::string out;
  bool first = true;
  for (const Value& item : iterate(value, in.budget())) {
    in.budget().bytes(separator.size());
    if (!std::exchange(first, false)) out += separator;
    out += to_text(by_path(in, item, bound[1]), in.budget());
  }
  return in.text(std::move(out));
}

Value as_list(Of& in, const Value& value, const Arguments& arguments) {
  arguments.expect_none("list");
  return in.list(iterate(value, in.budget()));
}

Value items(Of& in, const Value& value, const Arguments& arguments) {
  arguments.expect_none("items");
  if (value.is_undefined()) return in.list({});
  if (!value.is_dict()) fail("Can only get item pairs from a mapping.");
  return in.call(in.attribute(value, "items"), {});
}

Value first(Of& in, const Value& value, const Arguments& arguments) {
  arguments.expect_none("first");
  const auto all = iterate(value, in.budget());
  return all.empty() ? Value::undefined("No first item, sequence was empty.") : all.front();
}
Value last(Of& in, const Value& value, const Arguments& arguments) {
  arguments.expect_none("last");
  const auto all = iterate(value, in.budget());
  return all.empty() ? Value::undefined("No last item, sequence was empty.") : all.back();
}

Value reversed(Of& in, const Value& value, const Arguments& arguments) {
  arguments.expect_none("reverse");
  auto all = iterate(value, in.budget());
  std::reverse(all.begin(), all.end());
  if (!value.is_text()) return in.list(std::move(all));
  std::string out;
  for (const Value& letter : all)
    out += letter.as_text();
  return in.text(std::move(out));
}

Value sorted(Of& in, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind("sort", {"reverse", "case_sensitive", "attribute"});
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : iterate(value, in.budget()))
    keyed.emplace_back(sort_key(in, by_path(in, item, bound[2]), truth(bound[1])), item);
  sort_by(in, keyed, truth(bound[0]));
  std::vector<Value> out;
  for (const auto& [key, item] : keyed)
    out.push_back(item);
  return in.list(std::move(out));
}

Value dict_sorted(Of& in, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind("dictsort", {"case_sensitive", "by", "reverse"});
  const std::string by = bound[1] == nullptr ? "key" : need_text(*bound[1], "\"by\"");
  if (by != "key" && by != "value") fail("You can only sort by either \"key\" or \"value\"");
  if (!value.is_dict()) fail("dictsort needs a dictionary");
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, member] : value.members()) {
    keyed.emplace_back(sort_key(in, by == "key" ? key : member, truth(bound[0])),
                       in.list({key, member}, true));
  }
  sort_by(in, keyed, truth(bound[2]));
  std::vector<Value> out;
  for (const auto& [key, pair] : keyed)
    out.push_back(pair);
  return in.list(std::move(out));
}

Value unique(Of& in, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind("unique", {"case_sensitive", "attribute"});
  std::vector<Value> seen, out;
  for (const Value& item : iterate(value, in.budget())) {
    const Value key = sort_key(in, by_path(in, item, bound[1]), truth(bound[0]));
    const bool known = std::any_of(
        seen.begin(), seen.end(), [&](const Value& old) { return equal(old, key, in.budget()); });
    if (known) continue;
    seen.push_back(key);
    out.push_back(item);
  }
  return in.list(std::move(out));
}

Value extreme(Of& in, const Value& value, const Arguments& arguments, bool most) {
  const auto bound = arguments.bind(most ? "max" : "min", {"case_sensitive", "attribute"});
  const auto all = iterate(value, in.budget());
  if (all.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  const auto key = [&](const Value& item) {
    return sort_key(in, by_path(in, item, bound[1]), truth(bound[0]));
  };
  const Value* best = &all.front();
  for (const Value& item : all) {
    if (most ? less(key(*best), key(item), in.budget()) : less(key(item), key(*best), in.budget()))
      best = &item;
  }
  return *best;
}
Value maximum(Of& in, const Value& value, const Arguments& arguments) {
  return extreme(in, value, arguments, true);
}
Value minimum(Of& in, const Value& value, const Arguments& arguments) {
  return extreme(in, value, arguments, false);
}

Value summed(Of& in, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind("sum", {"attribute", "start"});
  Value out = bound[1] == nullptr ? Value::integer(0) : *bound[1];
  for (const Value& item : iterate(value, in.budget()))
    out = arithmetic("+", out, by_path(in, item, bound[0]), in.budget());
  return out;
}

/// The arguments after the first `count`.
Arguments rest_of(const Arguments& arguments, std::size_t count) {
  Arguments out = arguments;
  out.positional.erase(
      out.positional.begin(),
      out.positional.begin() + static_cast<std::ptrdiff_t>(std::min(count, out.positional.size())));
  return out;
}

Value mapped(Of& in, const Value& value, const Arguments& arguments) {
  std::vector<Value> out;
  if (arguments.positional.empty()) {
    const auto bound = arguments.bind("map", {"attribute", "default"});
    if (bound[0] == nullptr) fail("map requires a filter argument");
    for (const Value& item : iterate(value, in.budget())) {
      const Value found = by_path(in, item, bound[0]);
      out.push_back(found.is_undefined() && bound[1] != nullptr ? *bound[1] : found);
    }
    return in.list(std::move(out));
  }
  const std::string& name = need_text(arguments.positional[0], "the name of a filter");
  const Arguments rest = rest_of(arguments, 1);
  for (const Value& item : iterate(value, in.budget()))
    out.push_back(in.filter(name, item, rest));
  return in.list(std::move(out));
}

Value chosen(Of& in, const Value& value, const Arguments& arguments, bool by_attribute, bool keep) {
  const std::size_t skip = by_attribute ? 1 : 0;
  if (by_attribute && arguments.positional.empty()) fail("Missing parameter for attribute name");
  const Value* path = by_attribute ? &arguments.positional[0] : nullptr;
  const bool tests = arguments.positional.size() > skip;
  const Arguments rest = rest_of(arguments, skip + 1);
  std::vector<Value> out;
  for (const Value& item : iterate(value, in.budget())) {
    const Value of = by_path(in, item, path);
    const bool holds =
        tests ? in.test(need_text(arguments.positional[skip], "the name of a test"), of, rest)
              : of.truth();
    if (holds == keep) out.push_back(item);
  }
  return in.list(std::move(out));
}
Value select(Of& in, const Value& value, const Arguments& arguments) {
  return chosen(in, value, arguments, false, true);
}
Value reject(Of& in, const Value& value, const Arguments& arguments) {
  return chosen(in, value, arguments, false, false);
}
Value select_attribute(Of& in, const Value& value, const Arguments& arguments) {
  return chosen(in, value, arguments, true, true);
}
Value reject_attribute(Of& in, const Value& value, const Arguments& arguments) {
  return chosen(in, value, arguments, true, false);
}

Value attribute_of(Of& in, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind("attr", {"name"});
  if (bound[0] == nullptr) fail("attr needs a name");
  if (value.is_dict()) return Value::undefined("a dictionary has no attributes");
  return in.attribute(value, need_text(*bound[0], "a name"));
}

Value grouped(Of& in, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind("groupby", {"attribute", "default", "case_sensitive"});
  if (bound[0] == nullptr) fail("groupby needs an attribute");
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : iterate(value, in.budget())) {
    Value key = by_path(in, item, bound[0]);
    if (key.is_undefined() && bound[1] != nullptr) key = *bound[1];
    keyed.emplace_back(sort_key(in, key, truth(bound[2])), item);
  }
  sort_by(in, keyed, false);
  std::vector<Value> out;
  for (std::size_t i = 0; i < keyed.size();) {
    std::vector<Value> group;
    const Value key = keyed[i].first;
    const Value shown = by_path(in, keyed[i].second, bound[0]);
    for (; i < keyed.size() && equal(keyed[i].first, key, in.budget()); ++i)
      group.push_back(keyed[i].second);
    out.push_back(in.list({shown.is_undefined() ? key : shown, in.list(std::move(group))}, true));
  }
  return in.list(std::move(out));
}

Value batched(Of& in, const Value& value, const Arguments& arguments) {
  const auto bound = arguments.bind("batch", {"linecount", "fill_with"});
  if (bound[0] == nullptr) fail("batch needs a number");
  const std::int64_t size = need_int(*bound[0], "the size of a batch");
  if (size < 1 || size > in.budget().limits().longest_range) fail("a batch has at least one item");
  std::vector<Value> out, batch;
  const auto close = [&] { out.push_back(in.list(std::exchange(batch, {}))); };
  for (const Value& item : iterate(value, in.budget())) {
    if (static_cast<std::int64_t>(batch.size()) == size) close();
    batch.push_back(item);
  }
  if (!batch.empty()) {
    if (bound[1] != nullptr && !bound[1]->is_none())
      batch.resize(static_cast<std::size_t>(size), *bound[1]);
    close();
  }
  return in.list(std::move(out));
}

}  // namespace

const FilterTable& list_filters() {
  static const FilterTable kTable = {
      {"default", defaulted},
      {"d", defaulted},
      {"length", length},
      {"count", length},
      {"join", joined},
      {"list", as_list},
      {"items", items},
      {"first", first},
      {"last", last},
      {"reverse", reversed},
      {"sort", sorted},
      {"dictsort", dict_sorted},
      {"unique", unique},
      {"max", maximum},
      {"min", minimum},
      {"sum", summed},
      {"map", mapped},
      {"select", select},
      {"reject", reject},
      {"selectattr", select_attribute},
      {"rejectattr", reject_attribute},
      {"attr", attribute_of},
      {"groupby", grouped},
      {"batch", batched},
  };
  return kTable;
}

}  // namespace tessera::text::chat
