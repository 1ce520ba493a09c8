#include "lockstep/train/command_line/parse.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <type_traits>

#include "lockstep/core/parse_number.h"
#include "lockstep/train/command_line/main.h"

namespace lockstep::command_line {
namespace {

// "--some_name=some_value" with dashes in the name.
std::string with_dashes(std::string word) {
  const auto end = std::find(word.begin(), word.end(), '=');
  std::replace(word.begin(), end, '_', '-');
  return word;
}

// CLI11 passes over the empty items of "0,,1".
void refuse_empty_items(const CLI::App& app, const std::string& word, const std::string& value) {
  const CLI::Option* const option = app.get_option_no_throw(word);
  const char between = option ? option->get_delimiter() : '\0';
  if (between == '\0') return;
  const std::string items = between + value + between;
  if (items.find(std::string(2, between)) != std::string::npos)
    throw UsageError(fmt::format("{}: '{}' has an empty item; see --help", word, value));
}

// Without what CLI11 writes behind a flag: the value that it stands for, and a check of it.
class HelpText final : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    const std::string name = CLI::Formatter::make_option_name(option, is_positional);
    return name.substr(0, name.find('{'));
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_items_expected_min() == 0 ? std::string() : CLI::Formatter::make_option_opts(option);
  }
};

bool takes_next_word(const CLI::App& app, const std::string& word) {
  if (word.find('=') != std::string::npos) return false;
  const CLI::Option* const option = app.get_option_no_throw(word);
  return option && option->get_items_expected_max() > 0;
}

// Whether `word` is a flag that stands for a number, such as one declared as "--zero{1}": "--zero 3" is "--zero=3".
bool stands_for_a_number(const CLI::App& app, const std::string& word) {
  const CLI::Option* const option = app.get_option_no_throw(word);
  return option && option->get_items_expected_max() == 0 &&
         parse_number<std::int64_t>(option->get_flag_value(word.substr(word.find_first_not_of('-')), ""));
}

}  // namespace

bool parse(CLI::App& app, int argc, const char* const* argv, std::vector<std::string>* program) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  std::vector<std::string> own;
  std::size_t i = 0;
  for (; i < words.size() && words[i] != "--"; ++i) {
    const bool is_option = words[i].size() > 1 && words[i][0] == '-';
    if (!is_option && program) break;
    const bool is_long = words[i].rfind("--", 0) == 0;
    own.push_back(is_long ? with_dashes(words[i]) : words[i]);
    if (const std::size_t equals = own.back().find('='); is_long && equals != std::string::npos)
      refuse_empty_items(app, own.back().substr(0, equals), own.back().substr(equals + 1));
    if (is_option && i + 1 < words.size() && takes_next_word(app, own.back())) {
      refuse_empty_items(app, own.back(), words[i + 1]);
      own.push_back(words[++i]);
    } else if (is_long && i + 1 < words.size() && stands_for_a_number(app, own.back()) &&
               parse_number<std::int64_t>(words[i + 1])) {
      own.back() += "=" + words[++i];
    }
  }
  if (program) {
    if (i < words.size() && words[i] == "--") ++i;
    program->assign(words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
  } else {
    own.insert(own.end(), words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
  }
  std::reverse(own.begin(), own.end());  // the order in which CLI11 takes them
  try {
    app.parse(own);
  } catch (const CLI::CallForHelp&) {
    app.formatter(std::make_shared<HelpText>());
    std::string help = app.help();
    const std::string usage = "[OPTIONS]";
    if (const std::size_t at = help.find(usage); program && at != std::string::npos)
      help.insert(at + usage.size(), " [--] PROGRAM [ARGUMENTS...]");
    std::fputs(help.c_str(), stdout);
    return false;
  } catch (const CLI::ParseError& error) {
    std::string message = error.what();
    std::replace(message.begin(), message.end(), '\n', ' ');
    throw UsageError(fmt::format("{}; see --help", message));
  }
  return true;
}

template <typename T>
CLI::Validator number(T least, T most) {
  const bool above = least > std::numeric_limits<T>::lowest(), below = most < std::numeric_limits<T>::max();
  const std::string range = above && below          ? fmt::format("{} to {}", least, most)
                            : above                 ? fmt::format("{} or more", least)
                            : below                 ? fmt::format("{} or less", most)
                            : std::is_unsigned_v<T> ? "0 or more"
                                                    : std::string();
  const auto check = [=](std::string& text) -> std::string {
    const std::optional<T> value = parse_number<T>(text);
    const bool finite = value && std::isfinite(static_cast<double>(*value));
    if (finite && *value >= least && *value <= most) return {};
    if (finite && !range.empty()) return fmt::format("{} is out of range; expected {}", text, range);
    return fmt::format("'{}' is {}{}", text,
                       std::is_integral_v<T> ? "no whole number, or too large" : "no finite number",
                       range.empty() ? "" : "; expected " + range);
  };
  return CLI::Validator(check, range);
}

template CLI::Validator number(int, int);
template CLI::Validator number(std::int64_t, std::int64_t);
template CLI::Validator number(std::uint64_t, std::uint64_t);
template CLI::Validator number(double, double);

}  // namespace lockstep::command_line
