ONE = "another_name one_list_held_twice default_argument two_closures cycle view saved_for_backward"
NONE = "nothing_returned deep_copy weak_reference cycle_collected text_of_the_error detached"


def predictions():
    return (
        dict.fromkeys(ONE.split(), 1)
        | dict.fromkeys(NONE.split(), 0)
        | dict(key_and_value=2, error_kept=2, three_times_in_a_list=3)
    )
