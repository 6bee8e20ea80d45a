// SPDX-License-Identifier: Apache-2.0
// Functions that a template may call, and the attributes of `loop`.
#include <algorithm>
#include <array>
#include <ctime>

#include "tessera/text/chat/interpreter.h"

namespace tessera::text::chat {
namespace {

Value range(Interpreter& in, const Arguments& arguments) {
  const auto bound = arguments.bind("range", {"start", "stop", "step"});
  if (bound[0] == nullptr) fail("range() needs a number");
  const bool one = bound[1] == nullptr;
  const std::int64_t begin = one ? 0 : need_int(*bound[0], "an argument of range");
  const std::int64_t end = need_int(one ? *bound[0] : *bound[1], "an argument of range");
  const std::int64_t step = bound[2] == nullptr ? 1 : need_int(*bound[2], "an argument of range");
  if (step == 0) fail("the step of range() must not be zero");
  std::vector<Value> out;
  for (std::int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (static_cast<std::int64_t>(out.size()) >= in.budget().limits().longest_range)
      fail("a range() of more than " + std::to_string(in.budget().limits().longest_range));
    out.push_back(Value::integer(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return in.list(std::move(out));
}

Value raise_exception(Interpreter& in, const Arguments& arguments) {
  const auto bound = arguments.bind("raise_exception", {"message"});
  throw Error(Error::Kind::Data,
              "the chat template refuses this conversation: " +
                  (bound[0] == nullptr ? std::string() : to_text(*bound[0], in.budget())),
              "give messages in the roles and the order that the model was trained with");
}

Value strftime_now(Interpreter& in, const Arguments& arguments) {
  const auto bound = arguments.bind("strftime_now", {"format"});
  if (bound[0] == nullptr) fail("strftime_now() needs a format");
  const std::string& format = need_text(*bound[0], "a format of the date");
  if (format.empty()) return in.text("");
  if (format.size() > 256) fail("a format of the date beyond 256 bytes");
  std::tm parts{};
  const std::time_t now = in.now();
  localtime_r(&now, &parts);
  std::array<char, 8192> out{};
  const std::size_t length = std::strftime(out.data(), out.size(), format.c_str(), &parts);
  return in.text(std::string(out.data(), length));
}

std::vector<std::pair<Value, Value>> named_members(Interpreter& in, const Arguments& arguments) {
  std::vector<std::pair<Value, Value>> members;
  if (!arguments.positional.empty()) {
    if (arguments.positional.size() > 1 || !arguments.positional[0].is_dict())
      fail("dict() and namespace() take one dictionary and named values");
    members = arguments.positional[0].members();
  }
  for (const auto& [name, value] : arguments.named) {
    const std::string& wanted = name;
    const auto same = std::find_if(members.begin(), members.end(), [&](const auto& member) {
      return member.first.is_text() && member.first.as_text() == wanted;
    });
    if (same != members.end()) {
      same->second = value;
    } else {
      members.emplace_back(in.text(name), value);
    }
  }
  return members;
}

Value make_namespace(Interpreter& in, const Arguments& arguments) {
  auto* out = in.own<Namespace>();
  for (const auto& [key, value] : named_members(in, arguments))
    out->names.emplace_back(need_text(key, "a name of a namespace"), value);
  return Value::object(out);
}

Value make_dict(Interpreter& in, const Arguments& arguments) {
  return Value::dict(named_members(in, arguments), in.budget());
}

Value make_cycler(Interpreter& in, const Arguments& arguments) {
  if (arguments.positional.empty() || !arguments.named.empty())
    fail("cycler() needs at least one item");
  auto* out = in.own<Cycler>();
  out->items = arguments.positional;
  return Value::object(out);
}

Value make_joiner(Interpreter& in, const Arguments& arguments) {
  const auto bound = arguments.bind("joiner", {"sep"});
  auto* out = in.own<Joiner>();
  out->separator = bound[0] == nullptr ? ", " : need_text(*bound[0], "a separator");
  return Value::object(out);
}

Loop& loop_of(const Value& self) {
  return *self.object_as<Loop>();
}

Value loop_cycle(Interpreter& /*in*/, const Value& self, const Arguments& arguments) {
  if (arguments.positional.empty()) fail("no items for cycling given");
  return arguments.positional[loop_of(self).index % arguments.positional.size()];
}

Value loop_changed(Interpreter& in, const Value& self, const Arguments& arguments) {
  Loop& loop = loop_of(self);
  const Value now = in.list(arguments.positional, true);
  const bool same = loop.has_changed && equal(loop.last_changed, now, in.budget());
  loop.has_changed = true;
  loop.last_changed = now;
  return Value::boolean(!same);
}

Value cycler_next(Interpreter& /*in*/, const Value& self, const Arguments& /*arguments*/) {
  auto& cycler = *self.object_as<Cycler>();
  const Value out = cycler.items[cycler.at];
  cycler.at = (cycler.at + 1) % cycler.items.size();
  return out;
}

Value cycler_reset(Interpreter& /*in*/, const Value& self, const Arguments& /*arguments*/) {
  self.object_as<Cycler>()->at = 0;
  return Value::none();
}

}  // namespace

Function::Body find_function(std::string_view name) {
  static constexpr std::array<std::pair<std::string_view, Function::Body>, 7> kTable = {{
      {"range", range},
      {"raise_exception", raise_exception},
      {"strftime_now", strftime_now},
      {"namespace", make_namespace},
      {"dict", make_dict},
      {"cycler", make_cycler},
      {"joiner", make_joiner},
  }};
  for (const auto& [known, body] : kTable) {
    if (known == name) return body;
  }
  return nullptr;
}

Value loop_attribute(Interpreter& interpreter, Loop* loop, const std::string& name) {
  const auto size = static_cast<std::int64_t>(loop->elements.items().size());
  const auto index = static_cast<std::int64_t>(loop->index);
  const auto element = [&](std::int64_t at, const char* what) {
    if (at >= 0 && at < size) return loop->elements.items()[static_cast<std::size_t>(at)];
    return Value::undefined(what);
  };
  if (name == "index") return Value::integer(index + 1);
  if (name == "index0") return Value::integer(index);
  if (name == "revindex") return Value::integer(size - index);
  if (name == "revindex0") return Value::integer(size - index - 1);
  if (name == "first") return Value::boolean(index == 0);
  if (name == "last") return Value::boolean(index + 1 == size);
  if (name == "length") return Value::integer(size);
  if (name == "depth") return Value::integer(loop->depth + 1);
  if (name == "depth0") return Value::integer(loop->depth);
  if (name == "previtem") return element(index - 1, "there is no previous item");
  if (name == "nextitem") return element(index + 1, "there is no next item");
  const Method::Body body = name == "cycle"     ? loop_cycle
                            : name == "changed" ? loop_changed
                                                : nullptr;
  if (body != nullptr) return Value::object(interpreter.own<Method>(Value::object(loop), body));
  return Value::undefined("a loop has no attribute '" + name + "'");
}

Value cycler_attribute(Interpreter& interpreter, Cycler* cycler, const std::string& name) {
  if (name == "current") return cycler->items[cycler->at];
  const Method::Body body = name == "next" ? cycler_next : name == "reset" ? cycler_reset : nullptr;
  if (body != nullptr) return Value::object(interpreter.own<Method>(Value::object(cycler), body));
  return Value::undefined("a cycler has no attribute '" + name + "'");
}

}  // namespace tessera::text::chat
