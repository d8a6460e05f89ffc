"""Parts of a chart's spec, for tests of what is drawn."""


def rows(chart):
    return chart.spec["data"]["values"]


def layer(chart, mark):
    (found,) = [it for it in chart.spec["layer"] if it["mark"]["type"] == mark]
    return found


def title_of_y(chart):
    return layer(chart, "line")["encoding"]["y"]["title"]
