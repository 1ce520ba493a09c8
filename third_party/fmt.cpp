// fmt's functions that are not templates, compiled once for programs without shared libraries: Debian's package offers
// them as a shared library or as headers, which would put a copy of the printing of numbers into every file.
// See "Usage", https://fmt.dev/9.1.0/usage.html.

#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {

template dragonbox::decimal_fp<float> dragonbox::to_decimal(float x) noexcept;
template dragonbox::decimal_fp<double> dragonbox::to_decimal(double x) noexcept;

template thousands_sep_result<char> thousands_sep_impl(locale_ref locale);
template char decimal_point_impl(locale_ref locale);
template locale_ref::locale_ref(const std::locale& locale);
template std::locale locale_ref::get<std::locale>() const;

template void buffer<char>::append(const char* begin, const char* end);
template void vformat_to(buffer<char>& out, string_view format, basic_format_args<FMT_BUFFER_CONTEXT(char)> args,
                         locale_ref locale);

}  // namespace detail
FMT_END_NAMESPACE
